/* SPDX-License-Identifier: MIT */
#include "plan_fields.h"

#include "field_rows.h"
#include "plan_file.h"
#include "topology.h"

/* clang-format off */
const char *const bl_placed_by_words[] = {"search", "rules", "hand", NULL};
const char *const bl_part_words[] = {"embed", "attn", "state", "ffn", "experts", "head", NULL}; /* enum bl_part */

#define NEED_BYTES(name, member) {name, BL_JSON_BYTES, AT(member), 0, MOST_BYTES, NULL, true, true}
#define FLAG(name, member) {name, BL_JSON_FLAG, AT(member), 0, 0, NULL, false, true}

static const struct bl_json_field file_rows[] = {
    OTHER("ballast_plan", true), /* first, so that the file says what it is */
    OTHER("model", true),
    OTHER("machine", true),
    OTHER("settings", true),
    OTHER("placement", true),
    OTHER("derived", false),
};

#define OF struct bl_plan_file_model
static const struct bl_json_field model_rows[] = {
    TEXT("name", name, false),
    TEXT("arch", arch, true),
    NEED("n_layers", n_layers, 1 << 20),
    NEED("n_tensors", n_tensors, 1 << 26),
    NEED_BYTES("tensor_bytes", tensor_bytes),
    TEXT("digest", digest, true),
};
#undef OF

#define OF struct bl_plan_file
static const struct bl_json_field machine_rows[] = {
    TEXT("name", machine_name, false),
    OTHER("devices", true),
};
#undef OF

#define OF struct bl_plan_file_device
static const struct bl_json_field device_rows[] = {
    TEXT("id", id, true),
    TEXT("name", name, true),
    WORD("kind", kind, bl_kind_words, true),
    WORD("mem_kind", mem_kind, bl_memory_words, true),
    COUNT("cores", cores, 1 << 16),
    BYTES("mem_bytes", mem_bytes, 0),
    BYTES("usable_bytes", usable_bytes, 0),
    BPS("read_bps", read_bps),
    MACS("f16_macs_per_s", macs_per_s),
    BPS("from_host_bps", from_host_bps),
    BPS("to_host_bps", to_host_bps),
};
#undef OF

#define OF struct bl_plan_file_settings
static const struct bl_json_field settings_rows[] = {
    NEED("ctx_tokens", ctx_tokens, BL_MAX_CONTEXT),
    COUNT("asked_ctx_tokens", asked_ctx_tokens, BL_MAX_CONTEXT),
    NEED("batch_tokens", batch_tokens, 1 << 20),
    NEED("ubatch_tokens", ubatch_tokens, 1 << 20),
    NEED("out_tokens", out_tokens, 1 << 20),
    NEED("max_sessions", max_sessions, 1 << 16),
    COUNT("rewind_tokens", rewind_tokens, 1 << 16),
    TEXT("type_k", type_k, true),
    TEXT("type_v", type_v, true),
    FLAG("mmap", mmap),
    FLAG("exact", exact),
    COUNT("threads", threads, BL_MAX_CPUS),
    COUNT("threads_prefill", threads_prefill, BL_MAX_CPUS),
    OTHER("nodes", false),
    BYTES("reserve_bytes", reserve_bytes, 0),
    {"prefill_weight", BL_JSON_RATIO, AT(prefill_weight), 0, 1, NULL, false, true},
    COUNT("depth_tokens", depth_tokens, BL_MAX_CONTEXT),
    WORD("placed_by", placed_by, bl_placed_by_words, false),
    OTHER("expert_policy", false),
    BYTES("move_bytes", move_bytes, 0),
    COUNT("stream_from_tok", stream_from, 1 << 20),
    BYTES("chunk_bytes", chunk_bytes, 0),
};
#undef OF

#define OF struct bl_plan_file_place
static const struct bl_json_field place_rows[] = {
    OTHER("layers", false),
    WORD("part", part, bl_part_words, false),
    OTHER("layer", false),
    OTHER("experts", false),
    {"slots", BL_JSON_U32, AT(slots), 1, 1 << 20, NULL, false, false},
    TEXT("device", device, true),
};
#undef OF

static const struct bl_json_field derived_rows[] = {
    OTHER("prediction", false),
    OTHER("devices", false),
    OTHER("memory", false),
    OTHER("groups", false),
    OTHER("embed", false),
    OTHER("head", false),
    OTHER("notes", false),
    OTHER("peers", false),
};

static const struct bl_json_field prediction_rows[] = {
    OTHER("decode", false),
    OTHER("prefill", false),
    OTHER("stream_from_tok", false),
};

#define OF struct bl_speed
static const struct bl_json_field speed_rows[] = {
    {"tok_per_s", BL_JSON_RATIO, AT(tok_per_s), 1e-9, 1e12, NULL, true, true},
    {"sd", BL_JSON_RATIO, AT(sd), 0, 100, NULL, false, true},
};
#undef OF

#define OF struct bl_plan_file_memory
static const struct bl_json_field memory_rows[] = {
    TEXT("device", device, true),
    TEXT("purpose", purpose, true),
    NEED_BYTES("planned_bytes", planned_bytes),
};
#undef OF

#define FIELDS(name) const struct bl_machine_fields bl_plan_fields_##name = {#name, name##_rows, BL_COUNT(name##_rows)}
FIELDS(file);
FIELDS(model);
FIELDS(machine);
FIELDS(device);
FIELDS(settings);
FIELDS(place);
FIELDS(derived);
FIELDS(prediction);
FIELDS(speed);
FIELDS(memory);

const struct bl_machine_fields *const bl_plan_fields_all[] = {
    &bl_plan_fields_file, &bl_plan_fields_model, &bl_plan_fields_machine, &bl_plan_fields_device,
    &bl_plan_fields_settings, &bl_plan_fields_place, &bl_plan_fields_derived, &bl_plan_fields_prediction,
    &bl_plan_fields_speed, &bl_plan_fields_memory, NULL};
