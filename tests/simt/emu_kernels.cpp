/* SPDX-License-Identifier: MIT */
/* Modules, kernels and graphs of the emulated driver. */
#include "emu_state.hpp"

#include "host_kernels.h"

#include <cstdio>

namespace emu {

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
    return !strncmp(static_cast<const char *>(image), text, strlen(text));
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
    if (!current())
        return bad_context;
    auto *m = new module_;
    m->on = current();
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
    const int fixed = (int)bl_host_kernel_static_shared(k);
    m->found.push_back(std::make_unique<function>(function{k, emu_face_usual_shared - fixed}));
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

/* What every block may have is not to be asked for. */
int function_allow(void *f, int bytes)
{
    int fixed = 0;
    function_static(f, &fixed);
    if (bytes + fixed <= emu_face_usual_shared || bytes + fixed > emu_face_shared_bytes)
        return invalid;
    static_cast<function *>(f)->dynamic_bytes = bytes;
    return ok;
}

int launch_kernel(void *handle, const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes, void *on,
                  void **args)
{
    auto *f = static_cast<function *>(handle);
    auto s = mine(on);
    int most = 0;
    if (!s)
        return bad_handle;
    function_threads(f, &most);
    const uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    if (!grid[0] || !grid[1] || !grid[2] || !threads || grid[0] > 0x7fffffff || grid[1] > 65535 || grid[2] > 65535)
        return invalid;
    if (threads > (uint64_t)most)
        return too_many_resources;
    if ((int)shared_bytes > f->dynamic_bytes)
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
    auto s = mine(handle);
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
    auto s = mine(handle);
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
    auto s = mine(on);
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

} // namespace emu
