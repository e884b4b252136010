/* SPDX-License-Identifier: MIT */
/* Cards, memory, streams and events of the emulated driver. */
#include "emu.hpp"

#include "host_kernels.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <thread>

namespace emu {

struct card {
    int number = 0;
    uint64_t total = 0, used = 0;
    std::map<uint64_t, size_t> block;
    std::set<int> peers;
    int retained = 0;
    std::atomic<int> broken{0};
};

namespace {
/* Never destroyed: threads of streams may outlive main. */
struct state {
    std::mutex lock;
    emu_config config{};
    emu_counts counts{};
    std::atomic<uint32_t> commands{0}, kernels{0}, launches{0};
    std::atomic<bool> let_go{false};
    std::vector<std::unique_ptr<card>> cards;
    std::vector<card *> visible;
    std::map<uintptr_t, size_t> pinned, registered;
    std::map<void *, std::shared_ptr<stream>> streams;
    std::set<void *> events, modules, graphs, execs;
    bool started = false;
};
state &all()
{
    static state *s = new state;
    return *s;
}
thread_local card *now_current;
using guard = std::lock_guard<std::mutex>;

uint64_t now_ns()
{
    return (uint64_t)std::chrono::steady_clock::now().time_since_epoch().count();
}

uint64_t number_in(const char *text, const char *name, uint64_t usual)
{
    const char *at = text ? strstr(text, name) : nullptr;
    return at ? strtoull(at + strlen(name), nullptr, 0) : usual;
}

/* For programs that cannot be told otherwise: EMU="cards=2,mib=512,late=50". */
emu_config from_environment()
{
    const char *text = getenv("EMU");
    emu_config c{};
    c.n_cards = (uint32_t)number_in(text, "cards=", 1);
    for (auto &bytes : c.mem_bytes)
        bytes = number_in(text, "mib=", 256) << 20;
    c.late_us = (uint32_t)number_in(text, "late=", 0);
    c.peers = number_in(text, "peers=", 0) != 0;
    c.peers_lie = number_in(text, "lie=", 0) != 0;
    c.stuck_nth = (uint32_t)number_in(text, "stuck=", 0);
    return c;
}

void make_cards(state &s)
{
    s.cards.clear();
    s.visible.clear();
    for (uint32_t i = 0; i < s.config.n_cards && i < EMU_MOST_CARDS; i++) {
        s.cards.push_back(std::make_unique<card>());
        s.cards[i]->number = (int)i;
        s.cards[i]->total = s.config.mem_bytes[i] ? s.config.mem_bytes[i] : 256u << 20;
    }
    const char *mask = getenv(emu_face_mask);
    if (!mask)
        for (auto &c : s.cards)
            s.visible.push_back(c.get());
    for (char *end; mask && *mask; mask = *end ? end + 1 : end) {
        const unsigned long i = strtoul(mask, &end, 10);
        if (end == mask || i >= s.cards.size())
            break; /* what follows is not visible either */
        s.visible.push_back(s.cards[i].get());
    }
}

bool inside(const std::map<uintptr_t, size_t> &m, uintptr_t at, size_t bytes)
{
    auto i = m.upper_bound(at);
    if (i == m.begin())
        return false;
    --i;
    return at - i->first <= i->second && bytes <= i->second - (at - i->first);
}

/* The card that has the whole range; NULL: none. */
card *owner(state &s, uint64_t at, size_t bytes)
{
    for (auto &c : s.cards) {
        auto i = c->block.upper_bound(at);
        if (i == c->block.begin())
            continue;
        --i;
        if (at - i->first <= i->second && bytes <= i->second - (at - i->first))
            return c.get();
    }
    return nullptr;
}

std::shared_ptr<stream> find(void *handle)
{
    state &s = all();
    guard l(s.lock);
    auto i = s.streams.find(handle);
    return i == s.streams.end() ? nullptr : i->second;
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

/* Freeing waits for the card, as the real ones do. */
void drain(card *c)
{
    std::vector<std::shared_ptr<stream>> of;
    {
        guard l(all().lock);
        for (auto &s : all().streams)
            if (s.second->on == c)
                of.push_back(s.second);
    }
    for (auto &s : of)
        while (!is_idle(*s))
            std::this_thread::sleep_for(std::chrono::microseconds(50));
}
} // namespace

/* ---- entering ---- */

int enter()
{
    state &s = all();
    guard l(s.lock);
    s.counts.calls++;
    if (s.counts.calls == s.config.fail_nth)
        return s.config.fail_code ? s.config.fail_code : unknown;
    if (!s.started)
        return not_started;
    return now_current ? now_current->broken.load() : ok;
}

int start()
{
    state &s = all();
    guard l(s.lock);
    if (!s.started && !s.config.n_cards)
        s.config = from_environment();
    if (!s.started)
        make_cards(s);
    s.started = true;
    s.counts.calls++;
    if (s.counts.calls == s.config.fail_nth)
        return s.config.fail_code ? s.config.fail_code : unknown;
    return s.visible.empty() ? no_device : ok;
}

int n_cards()
{
    return (int)all().visible.size();
}

card *card_at(int i)
{
    state &s = all();
    return i >= 0 && (size_t)i < s.visible.size() ? s.visible[(size_t)i] : nullptr;
}

uint64_t total_bytes(card *c)
{
    return c->total;
}

int number_of(card *c)
{
    return c->number;
}

card *current()
{
    return now_current;
}

void set_current(card *c)
{
    now_current = c;
}

int driver_version()
{
    return all().config.driver_version ? all().config.driver_version : 13000;
}

int retain(card *c)
{
    guard l(all().lock);
    all().counts.contexts += !c->retained++;
    return ok;
}

int release(card *c)
{
    guard l(all().lock);
    if (!c->retained)
        return bad_context;
    all().counts.contexts -= !--c->retained;
    return ok;
}

/* ---- memory ---- */

int mem_info(size_t *free_bytes, size_t *all_bytes)
{
    guard l(all().lock);
    if (!now_current)
        return bad_context;
    *all_bytes = now_current->total;
    *free_bytes = now_current->total - now_current->used;
    return ok;
}

int mem_alloc(uint64_t *addr, size_t bytes)
{
    guard l(all().lock);
    if (!now_current)
        return bad_context;
    if (!bytes)
        return invalid;
    if (bytes > now_current->total - now_current->used)
        return no_memory;
    void *p = nullptr;
    if (posix_memalign(&p, 256, bytes))
        return no_memory;
    memset(p, 0xff, bytes);
    now_current->used += bytes;
    now_current->block[(uintptr_t)p] = bytes;
    all().counts.mem_bytes += bytes;
    *addr = (uintptr_t)p;
    return ok;
}

int mem_free(uint64_t addr)
{
    state &s = all();
    card *c;
    {
        guard l(s.lock);
        c = owner(s, addr, 1);
        if (!c || !c->block.count(addr))
            return invalid;
    }
    drain(c);
    guard l(s.lock);
    c->used -= c->block[addr];
    s.counts.mem_bytes -= c->block[addr];
    c->block.erase(addr);
    free((void *)(uintptr_t)addr);
    return ok;
}

int host_alloc(void **host, size_t bytes)
{
    guard l(all().lock);
    if (!now_current)
        return bad_context;
    void *p = nullptr;
    if (!bytes || posix_memalign(&p, 4096, bytes))
        return bytes ? no_memory : invalid;
    memset(p, 0xff, bytes);
    all().pinned[(uintptr_t)p] = bytes;
    all().counts.host_bytes += bytes;
    *host = p;
    return ok;
}

int host_free(void *host)
{
    guard l(all().lock);
    auto i = all().pinned.find((uintptr_t)host);
    if (i == all().pinned.end())
        return invalid;
    all().counts.host_bytes -= i->second;
    all().pinned.erase(i);
    free(host);
    return ok;
}

int host_address(void *host)
{
    guard l(all().lock);
    return inside(all().pinned, (uintptr_t)host, 1) || inside(all().registered, (uintptr_t)host, 1) ? ok : invalid;
}

int host_register(void *host, size_t bytes)
{
    state &s = all();
    guard l(s.lock);
    const uintptr_t at = (uintptr_t)host;
    if (s.config.no_register)
        return not_supported;
    if (!now_current || !bytes || at % 4096 || bytes % 4096)
        return now_current ? invalid : bad_context;
    for (auto *m : {&s.pinned, &s.registered})
        for (auto &r : *m)
            if (r.first < at + bytes && at < r.first + r.second)
                return is_registered;
    s.registered[at] = bytes;
    s.counts.registered++;
    return ok;
}

int host_unregister(void *host)
{
    guard l(all().lock);
    if (!all().registered.erase((uintptr_t)host))
        return not_registered;
    all().counts.registered--;
    return ok;
}

/* ---- streams ---- */

int stream_create(void **out)
{
    state &g = all();
    guard l(g.lock);
    if (!now_current)
        return bad_context;
    auto s = std::make_shared<stream>();
    s->on = now_current;
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
    auto s = find(handle);
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
    auto s = find(handle);
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
    auto s = find(handle);
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
    auto s = find(handle);
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
    auto s = find(handle);
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
    auto s = find(handle);
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
    if (!now_current)
        return bad_context;
    auto *e = new event{now_current, timed, nullptr};
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
    auto s = find(on);
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
    if (!e)
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
    if (!a || !b || !a->timed || !b->timed)
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

/* ---- kernels ---- */

namespace {
struct row {
    const char *unit, *name;
};
const row rows[] = {
#define KERNEL(unit, name) {#unit, #name},
#include "simt/kernels.def"
KERNEL(peak, peak_halves) KERNEL(peak, peak_read) /* of card_peaks.c alone */
#undef KERNEL
};

const char *unit_of(const char *name)
{
    for (auto &r : rows)
        if (!strcmp(r.name, name))
            return r.unit;
    return nullptr;
}

bool starts(const void *image, const char *text)
{
    return !memcmp(image, text, strlen(text));
}

int run_kernel(const launch &n)
{
    state &g = all();
    char why[256] = "";
    if (++g.kernels == g.config.broken_nth)
        return illegal_address;
    g.launches++;
    if (!bl_host_kernel_run(n.kernel, n.args.data(), n.grid, n.block, n.shared_bytes, why, sizeof why))
        return ok;
    fprintf(stderr, "emulated card: %s\n", why);
    return launch_failed;
}
} // namespace

int module_load(void **out, const void *image)
{
    if (starts(image, "EMULATED none"))
        return no_image;
    if (starts(image, "EMULATED newer"))
        return newer_code;
    if (!starts(image, "EMULATED ") && !starts(image, "\x50\xed\x55\xba") && !starts(image, "\x7f" "ELF"))
        return bad_image;
    guard l(all().lock);
    if (!now_current)
        return bad_context;
    auto *m = new module_;
    m->on = now_current;
    all().modules.insert(m);
    all().counts.modules++;
    *out = m;
    return ok;
}

int module_unload(void *handle)
{
    guard l(all().lock);
    if (!all().modules.erase(handle))
        return bad_handle;
    all().counts.modules--;
    delete static_cast<module_ *>(handle);
    return ok;
}

int module_function(void **out, void *module, const char *name)
{
    guard l(all().lock);
    if (!all().modules.count(module))
        return bad_handle;
    const char *unit = unit_of(name);
    const bl_host_kernel *k = unit ? bl_host_kernel_find(unit, name) : nullptr;
    if (!k)
        return not_found;
    auto *m = static_cast<module_ *>(module);
    m->found.push_back(std::make_unique<function>(function{k, emu_face_usual_shared}));
    *out = m->found.back().get();
    return ok;
}

int function_threads(void *f, int *out)
{
    const unsigned n = bl_host_kernel_max_threads(static_cast<function *>(f)->kernel);
    *out = n ? (int)n : 1024;
    return ok;
}

int function_static(void *f, int *out)
{
    *out = (int)bl_host_kernel_static_shared(static_cast<function *>(f)->kernel);
    return ok;
}

int function_dynamic(void *f, int *out)
{
    *out = static_cast<function *>(f)->dynamic_bytes;
    return ok;
}

int function_allow(void *f, int bytes)
{
    int fixed = 0;
    function_static(f, &fixed);
    if (bytes < 0 || bytes + fixed > emu_face_shared_bytes)
        return invalid;
    static_cast<function *>(f)->dynamic_bytes = bytes;
    return ok;
}

int launch_kernel(void *handle, const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes, void *on,
                  void **args)
{
    auto *f = static_cast<function *>(handle);
    auto s = find(on);
    int most = 0, fixed = 0;
    if (!s)
        return bad_handle;
    function_threads(f, &most);
    function_static(f, &fixed);
    const uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    if (!grid[0] || !grid[1] || !grid[2] || !threads || grid[0] > 0x7fffffff || grid[1] > 65535 || grid[2] > 65535)
        return invalid;
    if (threads > (uint64_t)most)
        return too_many_resources;
    if ((int)shared_bytes + fixed > (f->dynamic_bytes > emu_face_usual_shared ? emu_face_shared_bytes : emu_face_usual_shared))
        return invalid;
    launch n{f->kernel, {}, {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, shared_bytes};
    const auto *bytes = static_cast<const unsigned char *>(args[0]);
    n.args.assign(bytes, bytes + bl_host_kernel_args_bytes(f->kernel));
    {
        guard l(s->lock);
        if (s->capture) {
            s->capture->node.push_back(std::move(n));
            return ok;
        }
    }
    return push(s, [n = std::move(n)] { return run_kernel(n); });
}

/* ---- graphs ---- */

int capture_begin(void *handle)
{
    auto s = find(handle);
    if (!s)
        return bad_handle;
    guard l(s->lock);
    if (s->capture)
        return capture_unsupported;
    s->capture = std::make_unique<graph>();
    return ok;
}

int capture_end(void *handle, void **out)
{
    auto s = find(handle);
    if (!s || !s->capture)
        return bad_handle;
    guard l(s->lock);
    graph *g = s->capture.release();
    guard k(all().lock);
    all().graphs.insert(g);
    all().counts.graphs++;
    *out = g;
    return ok;
}

static int forget(std::set<void *> &of, void *g)
{
    guard l(all().lock);
    if (!of.erase(g))
        return bad_handle;
    all().counts.graphs--;
    delete static_cast<std::shared_ptr<graph> *>(g);
    return ok;
}

int graph_instantiate(void **exec, void *g)
{
    guard l(all().lock);
    if (!all().graphs.count(g))
        return bad_handle;
    auto *e = new std::shared_ptr<graph>(std::make_shared<graph>(*static_cast<graph *>(g)));
    all().execs.insert(e);
    all().counts.graphs++;
    *exec = e;
    return ok;
}

int graph_destroy(void *g)
{
    guard l(all().lock);
    if (!all().graphs.erase(g))
        return bad_handle;
    all().counts.graphs--;
    delete static_cast<graph *>(g);
    return ok;
}

int graph_exec_destroy(void *exec)
{
    return forget(all().execs, exec);
}

int graph_launch(void *exec, void *on)
{
    auto s = find(on);
    std::shared_ptr<graph> g;
    {
        guard l(all().lock);
        if (!s || !all().execs.count(exec))
            return bad_handle;
        g = *static_cast<std::shared_ptr<graph> *>(exec);
        all().counts.graph_launches++;
    }
    return push(s, [g] {
        int code = ok;
        for (auto n = g->node.begin(); !code && n != g->node.end(); ++n)
            code = run_kernel(*n);
        return code;
    });
}

/* ---- peers ---- */

int can_peer(int *can, int from, int to)
{
    if (!card_at(from) || !card_at(to))
        return bad_device;
    *can = from != to && all().config.peers;
    return ok;
}

int enable_peer(card *to)
{
    guard l(all().lock);
    if (!now_current || !to)
        return bad_context;
    if (!all().config.peers)
        return 217;
    return now_current->peers.insert(to->number).second ? ok : peer_is_on;
}

} // namespace emu

using namespace emu;

extern "C" __attribute__((visibility("default"))) bool emu_configure(const struct emu_config *c)
{
    state &s = all();
    s.let_go = true;
    for (bool quiet = false; !quiet;) {
        std::vector<std::shared_ptr<stream>> of;
        {
            guard l(s.lock);
            for (auto &i : s.streams)
                of.push_back(i.second);
        }
        quiet = true;
        for (auto &i : of)
            quiet = is_idle(*i) && quiet;
        if (!quiet)
            std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    guard l(s.lock);
    const emu_counts &n = s.counts;
    const bool clean = !n.mem_bytes && !n.host_bytes && !n.registered && !n.streams && !n.events && !n.modules &&
                       !n.graphs && !n.contexts;
    for (auto &i : s.streams) {
        guard k(i.second->lock);
        i.second->stop = true;
        i.second->changed.notify_all();
    }
    s.streams.clear();
    for (auto &c : s.cards) {
        for (auto &b : c->block)
            free((void *)b.first);
        c->block.clear();
    }
    for (auto &b : s.pinned)
        free((void *)b.first);
    s.pinned.clear();
    s.registered.clear();
    for (void *e : s.events)
        delete static_cast<event *>(e);
    for (void *m : s.modules)
        delete static_cast<module_ *>(m);
    for (void *g : s.graphs)
        delete static_cast<graph *>(g);
    for (void *e : s.execs)
        delete static_cast<std::shared_ptr<graph> *>(e);
    s.events.clear();
    s.modules.clear();
    s.graphs.clear();
    s.execs.clear();
    s.counts = {};
    s.config = *c;
    s.commands = s.kernels = s.launches = 0;
    s.let_go = false;
    s.started = false;
    now_current = nullptr;
    return clean;
}

extern "C" __attribute__((visibility("default"))) void emu_read(struct emu_counts *out)
{
    guard l(all().lock);
    *out = all().counts;
    out->launches = all().launches;
}
