/* SPDX-License-Identifier: MIT */
#include "machine_fields.h"

#include "field_rows.h"

/* clang-format off */
const char *const bl_kind_words[] = {"cpu", "gpu", NULL};
const char *const bl_memory_words[] = {"host", "dedicated", "unified", NULL};
const char *const bl_isa_words[] = {"none", "avx2", "avx512", "avx512-vnni", "avx512-vnni-wide", "amx", "neon", "i8mm",
                                    "apple", NULL};
const char *const bl_step_team_names[BL_N_STEP_TEAMS] = {"few", "many"};
const char *const bl_hub_words[] = {"switch", "root", "dram", NULL};

#define NS(name, member) {name, BL_JSON_NS, AT(member), 1, 1e12, NULL, false, false}

#define OF struct bl_machine
static const struct bl_json_field machine_rows[] = {
    OTHER("ballast_machine", true), /* first, so that the file says what it is */
    TEXT("name", name, true),
    TEXT("source", source, false),
    OTHER("devices", true),
    OTHER("hubs", false),
    OTHER("links", false),
};
#undef OF

#define OF struct bl_machine_device
static const struct bl_json_field device_rows[] = {
    TEXT("id", id, true),
    TEXT("name", name, false),
    {"kind", BL_JSON_WORD, AT(kind), 0, 0, bl_kind_words, true, true},
    TEXT("backend", backend_name, false),
    {"integrated", BL_JSON_FLAG, AT(integrated), 0, 0, NULL, false, false},
    {"mem_kind", BL_JSON_WORD, AT(mem_kind), 0, 0, bl_memory_words, false, true},
    OTHER("shares", false),
    BYTES("mem_bytes", mem_bytes, 1),
    BYTES("usable_bytes", usable_bytes, 1),
    BYTES("carve_out_bytes", carve_out_bytes, 0),
    BYTES("driver_bytes", driver_bytes, 0),
    BYTES("block_bytes", caps.block_bytes, 1),
    TEXT("mem_source", mem_source, false),
    OTHER("mem_readings", false),
    BPS("read_rated_bps", read_rated_bps),
    BPS("read_measured_bps", read_measured_bps),
    COUNT("sockets", sockets, 64),
    COUNT("cores", cores, 65536),
    COUNT("threads", threads, 65536),
    {"isa", BL_JSON_WORD, AT(isa), 0, 0, bl_isa_words, false, false},
    {"clock_hz", BL_JSON_HZ, AT(clock_hz), 1e6, 1e11, NULL, false, false},
    {"cache_bytes", BL_JSON_SIZE, AT(cache_bytes), 1, MOST_BYTES, NULL, false, false},
    OTHER("domains", false),
    OTHER("read_rates", false),
    MACS("f32_macs_per_s", f32_macs_per_s),
    MACS("f16_macs_per_s", f16_macs_per_s),
    MACS("i8_macs_per_s", i8_macs_per_s),
    OTHER("rates", false),
    OTHER("step_rates", false),
    OTHER("kv_rates", false),
    NS("launch_ns", launch_ns),
    NS("layer_ns", layer_ns),
    NS("step_ns", step_ns),
    OTHER("barriers", false),
    OTHER("caps", false),
};
#undef OF

#define OF struct bl_domain
static const struct bl_json_field domain_rows[] = {
    COUNT("node", node, BL_MAX_DOMAINS - 1),
    NEED("cores", n_cores, 65536),
    BYTES("mem_bytes", mem_bytes, 1),
    BYTES("usable_bytes", usable_bytes, 1),
    BPS("read_rated_bps", read_rated_bps),
    BPS("read_measured_bps", read_measured_bps),
    BPS("far_bps", far_bps),
};
#undef OF

#define OF struct bl_memory_reading
static const struct bl_json_field reading_rows[] = {
    TEXT("source", source, true),
    {"bytes", BL_JSON_BYTES, AT(bytes), 0, MOST_BYTES, NULL, true, true},
    {"refused", BL_JSON_FLAG, AT(refused), 0, 0, NULL, false, false},
};
#undef OF

#define OF struct bl_read_rate
static const struct bl_json_field read_rate_rows[] = {
    NEED("threads", threads, 65536),
    NEED("domains", domains, BL_MAX_DOMAINS),
    {"bps", BL_JSON_BPS, AT(bps), 1e3, 1e16, NULL, true, true},
};
#undef OF

#define OF struct bl_type_rate
static const struct bl_json_field rate_rows[] = {
    BPS("decode_bps", decode_bps),
    MACS("macs_per_s_8", macs_per_s[0]),
    MACS("macs_per_s_64", macs_per_s[1]),
    MACS("macs_per_s_512", macs_per_s[2]),
};
#undef OF

#define OF struct bl_step_rate
static const struct bl_json_field step_rate_rows[] = {
    MACS("state_values_per_s", state_values_per_s),
    BPS("moved_bps", moved_bps),
    MACS("arranged_per_s", arranged_per_s),
};
#undef OF

#define OF struct bl_kv_rate
static const struct bl_json_field kv_rate_rows[] = {
    MACS("scores_per_s", scores_per_s),
    MACS("macs_per_s", macs_per_s),
    MACS("values_per_s", values_per_s),
    MACS("latent_macs_per_s", latent_macs_per_s),
};
#undef OF

#define OF struct bl_barrier_cost
static const struct bl_json_field barrier_rows[] = {
    NEED("threads", threads, 65536),
    {"ns", BL_JSON_NS, AT(ns), 1, 1e12, NULL, true, true},
};
#undef OF

#define OF struct bl_caps
static const struct bl_json_field caps_rows[] = {
    NEED("granule_bytes", granule_bytes, 1 << 30),
    NEED("threads", threads, 65536),
    COUNT("exact", exact, 1),
    COUNT("import_host", import_host, 1),
    COUNT("copies_from", copies_from, 1),
    COUNT("visible_on_host", visible_on_host, 1),
    OTHER("tiles", false),
};
#undef OF

#define OF struct bl_link
static const struct bl_json_field link_rows[] = {
    OTHER("a", true),
    OTHER("b", true),
    OTHER("via", false),
    TEXT("name", name, false),
    BPS("ab_rated_bps", ab_rated_bps),
    BPS("ba_rated_bps", ba_rated_bps),
    BPS("ab_measured_bps", ab_measured_bps),
    BPS("ba_measured_bps", ba_measured_bps),
    NS("latency_ns", latency_ns),
    NS("cross_ns", cross_ns),
};
#undef OF

#define OF struct bl_hub
static const struct bl_json_field hub_rows[] = {
    TEXT("id", id, true),
    {"kind", BL_JSON_WORD, AT(kind), 0, 0, bl_hub_words, true, true},
    OTHER("up", false),
    BPS("bps", bps),
};
#undef OF

#define OF struct bl_tile_caps
static const struct bl_json_field tile_rows[] = {
    {"part_bytes", BL_JSON_U16, AT(part_bytes), 1, UINT16_MAX, NULL, true, true},
    OTHER("from", true),
    OTHER("same_as", true),
};
#undef OF

#define TABLE(what) const struct bl_machine_fields bl_fields_##what = {#what, what##_rows, BL_COUNT(what##_rows)}
TABLE(machine);
TABLE(device);
TABLE(domain);
TABLE(reading);
TABLE(read_rate);
TABLE(rate);
TABLE(step_rate);
TABLE(kv_rate);
TABLE(barrier);
TABLE(caps);
TABLE(tile);
TABLE(link);
TABLE(hub);
/* clang-format on */
const struct bl_machine_fields *const bl_fields_all[] = {&bl_fields_machine,   &bl_fields_device,
                                                         &bl_fields_domain,    &bl_fields_reading,
                                                         &bl_fields_read_rate, &bl_fields_rate,
                                                         &bl_fields_step_rate, &bl_fields_kv_rate,
                                                         &bl_fields_barrier,   &bl_fields_caps,
                                                         &bl_fields_tile,      &bl_fields_link,
                                                         &bl_fields_hub,       NULL};
