/* SPDX-License-Identifier: MIT */
/* plan_file.h — plans as JSON: read, held against a model and a machine, written.
 *
 * Purpose   a plan that people can keep, edit, give to somebody else and run by. configs/schema/plan.schema.json describes
 *           the file. Its first half is what the plan is: for which model and machine, with which settings, what goes
 *           where. The second, "derived", is what follows from that; on reading it is computed anew and only compared.
 * Ownership the caller finishes the file and frees the text; a file borrows nothing.
 * Units     those of plan.h; names of members carry them.
 * Errors    BL_EINVAL: the file, with the path of the member and what it must be; the model, the machine or an option
 *           that it is not for, with the difference. BL_ENOFIT: a device has too little.
 * Threads   any.
 */
#ifndef BL_PLAN_FILE_H
#define BL_PLAN_FILE_H

#include "json.h"
#include "search.h"

enum { BL_PLAN_FORMAT = 1 };

enum bl_placed_by { BL_BY_SEARCH, BL_BY_RULES, BL_BY_HAND };

struct bl_plan_file_device {         /* of the machine that the plan was made for */
    char id[32], name[64];
    uint8_t kind, mem_kind;          /* enum bl_device_kind, bl_memory_kind */
    uint32_t cores;
    uint64_t mem_bytes, usable_bytes;
    double read_bps, macs_per_s;     /* that predictions are from; macs: f16 */
    double to_host_bps, from_host_bps;
};
struct bl_plan_file_place {
    uint32_t first, last;            /* layers; of embed and head 0 */
    uint32_t expert_first, expert_last;
    uint32_t slots;                  /* for experts of those layers; 0: the row places a part */
    uint8_t part;                    /* enum bl_part */
    bool some;                       /* only those experts of the layer */
    uint16_t on;                     /* index in device */
    char device[32];                 /* as written */
};
struct bl_plan_file_settings {
    uint32_t ctx_tokens, asked_ctx_tokens, batch_tokens, ubatch_tokens, out_tokens, max_sessions, rewind_tokens;
    uint32_t threads, threads_prefill; /* 0: not settled */
    char type_k[16], type_v[16];
    bool mmap, exact;
    uint8_t placed_by;               /* enum bl_placed_by */
    uint8_t expert_policy;           /* enum bl_expert_policy, of slots */
    uint64_t move_bytes;
    uint32_t stream_from;            /* struct bl_plan */
    uint64_t chunk_bytes;
    uint32_t depth_tokens;
    uint64_t reserve_bytes;
    uint64_t nodes;                  /* bits, as in struct bl_plan */
    double prefill_weight;
};
struct bl_plan_file_model {
    char name[96], arch[64];
    uint32_t n_layers, n_tensors;
    uint64_t tensor_bytes;
    char digest[20];                 /* of names, types and shapes, whatever their order; 16 hexadecimal digits */
};
struct bl_plan_file_memory {         /* a line of the ledger, as read */
    char device[32], purpose[16];
    uint64_t planned_bytes;
};
struct bl_plan_file {
    char what[80];                   /* begins messages: "plan p.json" */
    struct bl_plan_file_model model;
    char machine_name[96];
    struct bl_plan_file_device *device;
    struct bl_plan_file_place *place;
    struct bl_plan_file_memory *memory;
    uint32_t n_devices, n_places, n_memory;
    struct bl_plan_file_settings settings;
    struct bl_speed decode, prefill; /* as read; 0: none */
};
void bl_plan_file_finish(struct bl_plan_file *); /* zeroed is fine */

/* what: names the text in messages. */
enum bl_status bl_plan_file_parse(struct bl_plan_file *out, const char *what, const char *text, size_t n_bytes);
enum bl_status bl_plan_file_load(struct bl_plan_file *out, const char *path);
/* From a plan: everything but what is derived. Context, types, threads are those of model, plan and machine, the other
 * settings those given. */
enum bl_status bl_plan_file_make(struct bl_plan_file *out, const struct bl_plan *, const struct bl_model *,
                                 const struct bl_machine *, const struct bl_plan_file_settings *);
void bl_plan_file_describe(struct bl_plan_file_model *out, const struct bl_model *);
/* The members of it, into an object that is open. */
void bl_plan_file_put(struct bl_json_out *, const struct bl_plan_file *);

/* ---- use ---- */

/* Fills in what the options leave open. BL_EINVAL: one asks for other memory than the plan's, with both values. Texts
 * of the file are borrowed by the options. */
enum bl_status bl_plan_file_options(const struct bl_plan_file *, struct bl_options *);
/* BL_EINVAL: it is for another model; for another machine; with all that differs in what the plan uses. at: [n_devices]
 * of the file, filled with the machine's indices, BL_NO_DEVICE for those that are not here and not used. */
enum bl_status bl_plan_file_is_for(const struct bl_plan_file *, const struct bl_model *);
enum bl_status bl_plan_file_is_on(const struct bl_plan_file *, const struct bl_machine *, uint16_t *at);
/* The plan, for options that were filled in: model and machine compared, every part placed, memory counted. */
enum bl_status bl_plan_file_apply(struct bl_plan *out, const struct bl_plan_file *, const struct bl_model *,
                                  const struct bl_machine *, const struct bl_options *, uint64_t reserve_bytes);
/* The same with reasons and speeds. */
enum bl_status bl_plan_file_judge(struct bl_choice *out, const struct bl_plan_file *, const struct bl_model *,
                                  const struct bl_machine *, const struct bl_options *,
                                  const struct bl_search_options *);
/* Planned bytes of the devices are others than those written down. */
bool bl_plan_file_moved(const struct bl_plan_file *, const struct bl_plan *, const struct bl_machine *);
/* What was derived otherwise when the file was written, a line each: "prediction redone: decode 13.2 -> 11.9 tokens/s". */
void bl_plan_file_redone(const struct bl_plan_file *then, const struct bl_choice *now, const struct bl_machine *,
                         void (*line)(void *arg, const char *text), void *arg);

#endif
