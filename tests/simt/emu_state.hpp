/* SPDX-License-Identifier: MIT */
/* What the files of the emulated driver share behind emu.hpp: all that there is, under one lock; streams have their own. */
#pragma once
#include "emu.hpp"

#include <atomic>
#include <map>
#include <set>

namespace emu {

struct card {
    int number = 0;
    uint64_t total = 0, used = 0;
    std::map<uint64_t, size_t> block;
    std::set<int> peers;
    int retained = 0;
    std::atomic<int> broken{0};
};

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
state &all();
using guard = std::lock_guard<std::mutex>;

bool inside(const std::map<uintptr_t, size_t> &, uintptr_t at, size_t bytes);
card *owner(state &, uint64_t at, size_t bytes); /* the card that has the whole range; NULL: none */
void drain(card *);                              /* until its streams are idle */

/* emu_streams.cpp */
std::shared_ptr<stream> find(void *handle);      /* empty: there is none */
std::shared_ptr<stream> mine(void *handle);      /* or it is another card's than the calling thread uses */
bool is_idle(stream &);
int push(const std::shared_ptr<stream> &, std::function<int()> work);

} // namespace emu
