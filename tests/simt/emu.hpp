/* SPDX-License-Identifier: MIT */
/* The engine behind both faces of the emulated driver. */
#pragma once
#include "emu.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

struct bl_host_kernel;

namespace emu {

enum code {
    ok = 0, invalid = 1, no_memory = 2, not_started = 3, no_device = 100, bad_device = 101, bad_image = 200,
    bad_context = 201, no_image = 209, newer_code = 222, bad_handle = 400, not_found = 500, not_ready = 600,
    illegal_address = 700, too_many_resources = 701, peer_is_on = 704, is_registered = 712, not_registered = 713,
    launch_failed = 719, not_supported = 801, capture_unsupported = 900, unknown = 999
};

struct card;
struct launch {
    const bl_host_kernel *kernel;
    std::vector<unsigned char> args;
    uint32_t grid[3], block[3], shared_bytes;
};
struct record { /* one recording of an event */
    std::mutex lock;
    std::condition_variable changed;
    bool done = false;
    uint64_t ns = 0;
};
struct event {
    card *on;
    bool timed;
    std::shared_ptr<record> last;
};
struct graph {
    std::vector<launch> node;
};
struct stream {
    card *on;
    std::mutex lock;
    std::condition_variable changed;
    std::deque<std::function<int()>> queue;
    bool stop = false, busy = false;
    uint32_t random;
    std::unique_ptr<graph> capture;
};
struct function {
    const bl_host_kernel *kernel;
    int dynamic_bytes;
};
struct module_ {
    card *on;
    std::vector<std::unique_ptr<function>> found;
};

/* Every entry that can fail begins with it. */
int enter();
int start();          /* cuInit */
int n_cards();
card *card_at(int i); /* as they are visible; NULL: there is none */
uint64_t total_bytes(card *);
int number_of(card *); /* before masks */
card *current();
void set_current(card *);
int driver_version();

int retain(card *);
int release(card *);
int mem_info(size_t *free_bytes, size_t *all_bytes);
int mem_alloc(uint64_t *addr, size_t bytes);
int mem_free(uint64_t addr);
int host_alloc(void **host, size_t bytes);
int host_free(void *host);
int host_address(void *host);
int host_register(void *host, size_t bytes);
int host_unregister(void *host);
int stream_create(void **out);
int stream_destroy(void *);
int stream_query(void *);
int stream_wait_event(void *, void *event);
int stream_wait_value(void *, uint64_t addr, uint64_t at_least, bool wide);
int stream_call(void *, void (*fn)(void *), void *arg);
int copy(uint64_t dst, uint64_t src, size_t bytes, void *stream);
int fill(uint64_t addr, uint32_t word, size_t words, void *stream);
int event_create(void **out, bool timed);
int event_destroy(void *);
int event_record(void *, void *stream);
int event_query(void *);
int event_elapsed(float *ms, void *from, void *to);
int module_load(void **out, const void *image);
int module_unload(void *);
int module_function(void **out, void *module, const char *name);
int function_threads(void *, int *out);
int function_static(void *, int *out);
int function_dynamic(void *, int *out);
int function_allow(void *, int bytes);
int launch_kernel(void *function, const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes, void *stream,
                  void **args);
int capture_begin(void *stream);
int capture_end(void *stream, void **graph);
int graph_instantiate(void **exec, void *graph);
int graph_destroy(void *graph);
int graph_exec_destroy(void *exec);
int graph_launch(void *exec, void *stream);
int can_peer(int *can, int from, int to);
int enable_peer(card *to);

} // namespace emu

/* Of each face. */
/* Bytes of shared memory of a block: at the most, and without asking. */
extern const int emu_face_shared_bytes, emu_face_usual_shared;
extern const char emu_face_mask[]; /* variable that says which cards are visible */
