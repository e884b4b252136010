/* SPDX-License-Identifier: MIT */
/* Streams of the emulated driver: threads that do what they were given, late; copies, fills and events. */
#include "emu_state.hpp"

#include <chrono>
#include <thread>

namespace emu {

std::shared_ptr<stream> find(void *handle)
{
    state &s = all();
    guard l(s.lock);
    auto i = s.streams.find(handle);
    return i == s.streams.end() ? nullptr : i->second;
}

std::shared_ptr<stream> mine(void *handle)
{
    auto s = find(handle);
    return s && s->on == current() ? s : nullptr;
}

namespace {
uint64_t now_ns()
{
    return (uint64_t)std::chrono::steady_clock::now().time_since_epoch().count();
}

uint32_t random_of(stream &s)
{
    s.random = s.random * 1664525u + 1013904223u;
    return s.random >> 8;
}

void run(std::shared_ptr<stream> self)
{
    stream &s = *self;
    state &g = all();
    std::unique_lock<std::mutex> l(s.lock);
    for (;;) {
        s.changed.wait(l, [&] { return s.stop || !s.queue.empty(); });
        if (s.queue.empty())
            break;
        auto work = std::move(s.queue.front());
        s.queue.pop_front();
        s.busy = true;
        l.unlock();
        if (g.config.late_us)
            std::this_thread::sleep_for(std::chrono::microseconds(random_of(s) % g.config.late_us));
        const bool stuck = ++g.commands == g.config.stuck_nth;
        while (stuck && !g.let_go)
            std::this_thread::sleep_for(std::chrono::microseconds(100));
        const int code = s.on->broken ? 0 : work();
        work = nullptr;
        if (code)
            s.on->broken = code;
        l.lock();
        s.busy = false;
        s.changed.notify_all();
    }
}
} // namespace

bool is_idle(stream &s)
{
    guard l(s.lock);
    return s.queue.empty() && !s.busy;
}

int push(const std::shared_ptr<stream> &s, std::function<int()> work)
{
    guard l(s->lock);
    if (s->capture)
        return capture_unsupported;
    s->queue.push_back(std::move(work));
    s->changed.notify_all();
    return ok;
}

/* ---- streams ---- */

int stream_create(void **out)
{
    state &g = all();
    guard l(g.lock);
    if (!current())
        return bad_context;
    auto s = std::make_shared<stream>();
    s->on = current();
    s->random = g.config.seed + 77 * (uint32_t)g.streams.size();
    g.streams[s.get()] = s;
    g.counts.streams++;
    std::thread(run, s).detach();
    *out = s.get();
    return ok;
}

/* What it was given is still done. */
int stream_destroy(void *handle)
{
    auto s = find(handle);
    if (!s)
        return bad_handle;
    {
        guard l(s->lock);
        s->stop = true;
        s->changed.notify_all();
    }
    guard l(all().lock);
    all().streams.erase(handle);
    all().counts.streams--;
    return ok;
}

int stream_query(void *handle)
{
    auto s = mine(handle);
    if (!s)
        return bad_handle;
    if (s->on->broken)
        return s->on->broken;
    return is_idle(*s) ? ok : not_ready;
}

static int wait_for(const std::shared_ptr<record> &r)
{
    std::unique_lock<std::mutex> l(r->lock);
    while (!r->done && !all().let_go)
        r->changed.wait_for(l, std::chrono::milliseconds(5));
    return ok;
}

static event *event_of(void *handle)
{
    guard l(all().lock);
    return all().events.count(handle) ? static_cast<event *>(handle) : nullptr;
}

int stream_wait_event(void *handle, void *ev)
{
    auto s = mine(handle);
    event *e = event_of(ev);
    if (!s || !e)
        return bad_handle;
    std::shared_ptr<record> r;
    {
        guard l(all().lock);
        r = e->last;
    }
    return r ? push(s, [r] { return wait_for(r); }) : ok;
}

int stream_wait_value(void *handle, uint64_t addr, uint64_t at_least, bool wide)
{
    auto s = mine(handle);
    if (!s)
        return bad_handle;
    if (host_address((void *)(uintptr_t)addr) || addr % (wide ? 8 : 4))
        return invalid;
    return push(s, [=] {
        auto *n = reinterpret_cast<std::atomic<uint64_t> *>((uintptr_t)addr);
        auto reached = [&] {
            const uint64_t v = n->load(std::memory_order_acquire);
            return wide ? v >= at_least : (int32_t)((uint32_t)v - (uint32_t)at_least) >= 0;
        };
        while (!reached() && !all().let_go)
            std::this_thread::sleep_for(std::chrono::microseconds(20));
        return (int)ok;
    });
}

int stream_call(void *handle, void (*fn)(void *), void *arg)
{
    auto s = mine(handle);
    return s ? push(s, [=] { return fn(arg), (int)ok; }) : (int)bad_handle;
}

/* ---- copies ---- */

static void move(uint64_t dst, uint64_t src, size_t bytes, bool spoilt)
{
    memmove((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, bytes);
    if (spoilt)
        ++*(unsigned char *)(uintptr_t)dst;
}

int copy(uint64_t dst, uint64_t src, size_t bytes, void *handle)
{
    state &g = all();
    auto s = mine(handle);
    if (!s)
        return bad_handle;
    std::unique_lock<std::mutex> l(g.lock);
    card *to = owner(g, dst, bytes), *from = owner(g, src, bytes);
    const uint64_t at = to ? src : dst;
    const bool host = !to || !from;
    const bool held = !host || inside(g.pinned, at, bytes) || inside(g.registered, at, bytes);
    const bool peers = to && from && to != from;
    if ((!to && !from && !inside(g.pinned, dst, bytes)) || (!host && to != s->on && from != s->on))
        return invalid;
    g.counts.copies++;
    g.counts.peer_copies += peers;
    g.counts.pageable_copies += !held;
    g.counts.to_card_bytes += from ? 0 : bytes;
    g.counts.from_card_bytes += to ? 0 : bytes;
    const bool spoilt = peers && g.config.peers_lie;
    l.unlock();
    if (held)
        return push(s, [=] { return move(dst, src, bytes, spoilt), (int)ok; });
    if (to) { /* read at once, whatever the stream waits for */
        auto bytes_now = std::make_shared<std::vector<char>>((const char *)(uintptr_t)src, (const char *)(uintptr_t)src + bytes);
        return push(s, [=] { return move(dst, (uintptr_t)bytes_now->data(), bytes, false), (int)ok; });
    }
    const int code = push(s, [=] { return move(dst, src, bytes, false), (int)ok; });
    while (!code && !is_idle(*s))
        std::this_thread::sleep_for(std::chrono::microseconds(20));
    return code;
}

int fill(uint64_t addr, uint32_t word, size_t words, void *handle)
{
    auto s = mine(handle);
    if (!s)
        return bad_handle;
    {
        guard l(all().lock);
        if (addr % 4 || (owner(all(), addr, words * 4) != s->on && !inside(all().pinned, addr, words * 4)))
            return invalid;
    }
    return push(s, [=] {
        auto *w = (uint32_t *)(uintptr_t)addr;
        for (size_t i = 0; i < words; i++)
            w[i] = word;
        return (int)ok;
    });
}

/* ---- events ---- */

int event_create(void **out, bool timed)
{
    guard l(all().lock);
    if (!current())
        return bad_context;
    auto *e = new event{current(), timed, nullptr};
    all().events.insert(e);
    all().counts.events++;
    *out = e;
    return ok;
}

int event_destroy(void *handle)
{
    guard l(all().lock);
    if (!all().events.erase(handle))
        return bad_handle;
    all().counts.events--;
    delete static_cast<event *>(handle);
    return ok;
}

int event_record(void *handle, void *on)
{
    auto s = mine(on);
    event *e = event_of(handle);
    if (!s || !e || e->on != s->on)
        return bad_handle;
    auto r = std::make_shared<record>();
    {
        guard l(all().lock);
        e->last = r;
    }
    return push(s, [r] {
        guard l(r->lock);
        r->done = true;
        r->ns = now_ns();
        r->changed.notify_all();
        return (int)ok;
    });
}

static std::shared_ptr<record> last_of(event *e)
{
    guard l(all().lock);
    return e->last;
}

int event_query(void *handle)
{
    event *e = event_of(handle);
    if (!e || e->on != current())
        return bad_handle;
    if (e->on->broken)
        return e->on->broken;
    auto r = last_of(e);
    if (!r)
        return ok;
    guard l(r->lock);
    return r->done ? ok : not_ready;
}

int event_elapsed(float *ms, void *from, void *to)
{
    event *a = event_of(from), *b = event_of(to);
    if (!a || !b || !a->timed || !b->timed || a->on != current())
        return bad_handle;
    auto x = last_of(a), y = last_of(b);
    if (!x || !y)
        return bad_handle;
    guard l(x->lock);
    if (x == y) {
        *ms = 0;
        return ok;
    }
    guard k(y->lock);
    if (!x->done || !y->done)
        return not_ready;
    *ms = (float)((double)(int64_t)(y->ns - x->ns) * 1e-6);
    return ok;
}

} // namespace emu
