/* SPDX-License-Identifier: MIT */
/* Cards and memory of the emulated driver, and what tests tell it. */
#include "emu_state.hpp"

#include <chrono>
#include <cstdlib>
#include <thread>

namespace emu {

state &all()
{
    static state *s = new state;
    return *s;
}

namespace {
thread_local card *now_current;

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
} // namespace

bool inside(const std::map<uintptr_t, size_t> &m, uintptr_t at, size_t bytes)
{
    auto i = m.upper_bound(at);
    if (i == m.begin())
        return false;
    --i;
    return at - i->first <= i->second && bytes <= i->second - (at - i->first);
}

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
