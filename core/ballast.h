/* SPDX-License-Identifier: MIT */
/* ballast.h — the public API.
 *
 * Purpose   open a GGUF model at the best placement this machine allows and evaluate tokens. Three rungs:
 *           (1) bl_open: one call; (2) model, machine, plan, engine by hand; (3) many sessions in one batch.
 * Ownership every create/open has a destroy/close that takes NULL. Pointers returned by accessors are borrowed
 *           from the object they were asked of.
 * Units     sizes in bytes, counts and positions in tokens, times in nanoseconds; names say so.
 * Errors    functions return enum bl_status, 0 = good; bl_error() has the line of text. Results come through the
 *           last parameters and are untouched on failure unless said otherwise.
 * Threads   one engine is used from one thread at a time; different engines are independent. The log sink and the
 *           CPU-flag mask are the only global state.
 */
#ifndef BALLAST_H
#define BALLAST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- status ------------------------------------------------------------------------------------------- */

enum bl_status {
    BL_OK = 0,
    BL_EINVAL = -1,       /* the caller's argument */
    BL_ENOMEM = -2,       /* an allocation failed */
    BL_EIO = -3,          /* the operating system refused a read, write or mapping */
    BL_EFORMAT = -4,      /* a file's contents are wrong */
    BL_EUNSUPPORTED = -5, /* valid, but not something this build can do */
    BL_EUNAVAILABLE = -6, /* no such device or driver here */
    BL_EDEVICE = -7,      /* a device failed; sticky for its streams */
    BL_ELIMIT = -8,       /* context full, rewind not allowed, too large */
    BL_ECANCELLED = -9,
    BL_ETIMEDOUT = -10,
    BL_ENOFIT = -11 /* the plan needs more memory than there is */
};
const char *bl_error(void); /* this thread's last failure in words; never NULL; read before the next call */
enum { BL_SIZE_TEXT = 24 };
/* A size for people, "11.60 GiB" or "3.1 MiB": what is not zero does not look like it. Returns text. */
const char *bl_size_text(uint64_t bytes, char text[BL_SIZE_TEXT]);
const char *bl_status_name(enum bl_status);
const char *bl_version(void); /* "0.1.0 (abc1234)" */

/* ---- log ---------------------------------------------------------------------------------------------- */

enum bl_log_level { BL_LOG_ERROR, BL_LOG_WARN, BL_LOG_INFO, BL_LOG_DEBUG };
typedef void bl_log_fn(void *arg, enum bl_log_level, const char *line); /* line has no newline */
void bl_log_set(bl_log_fn *, void *arg, enum bl_log_level most);        /* NULL = silent, the default */

/* ---- GGUF files: what `ballast info` shows ------------------------------------------------------------ */

struct bl_gguf;
enum bl_value_type {
    BL_VAL_U8, BL_VAL_I8, BL_VAL_U16, BL_VAL_I16, BL_VAL_U32, BL_VAL_I32, BL_VAL_F32,
    BL_VAL_BOOL, BL_VAL_STRING, BL_VAL_ARRAY, BL_VAL_U64, BL_VAL_I64, BL_VAL_F64
};
struct bl_kv {
    const char *key;          /* NUL-terminated */
    enum bl_value_type type;  /* of the value; BL_VAL_ARRAY: see item */
    enum bl_value_type item;  /* element type of an array, otherwise = type */
    uint64_t n;               /* elements of an array, otherwise 1 */
    const void *data;         /* packed little-endian file bytes, unaligned; strings are u64 length + bytes */
    uint64_t data_bytes;
};
struct bl_tensor_info {
    const char *name;       /* NUL-terminated */
    const char *type_name;  /* "q4_k" */
    uint32_t type;          /* enum bl_dtype of core/dtype.h */
    uint32_t n_dims;
    uint64_t ne[4];         /* elements, ne[0] fastest; unused ones are 1 */
    uint64_t bytes;
    uint64_t file_off;      /* absolute offset in its file */
    uint32_t shard;         /* index of the file that holds it */
};
/* Any shard of a split model may be named. Reads headers only. BL_EIO, BL_EFORMAT, BL_EUNSUPPORTED. */
enum bl_status bl_gguf_open(struct bl_gguf **out, const char *path);
/* The same for files whose tensor data may be missing, as of a download that stopped: enough to look at. */
enum bl_status bl_gguf_open_header(struct bl_gguf **out, const char *path);
uint64_t bl_gguf_missing_bytes(const struct bl_gguf *);
void bl_gguf_close(struct bl_gguf *);
uint32_t bl_gguf_n_kv(const struct bl_gguf *);
const struct bl_kv *bl_gguf_kv(const struct bl_gguf *, uint32_t i);
uint32_t bl_gguf_n_tensors(const struct bl_gguf *);
const struct bl_tensor_info *bl_gguf_tensor(const struct bl_gguf *, uint32_t i);
uint32_t bl_gguf_n_shards(const struct bl_gguf *);
const char *bl_gguf_shard_path(const struct bl_gguf *, uint32_t i);
uint64_t bl_gguf_shard_bytes(const struct bl_gguf *, uint32_t i); /* size of the file */

/* ---- vocabulary --------------------------------------------------------------------------------------- */

struct bl_vocab;
struct bl_text; /* streaming detokeniser of one sequence */
enum { BL_TOK_ADD_SPECIAL = 1,   /* bos/eos as the file asks */
       BL_TOK_PARSE_SPECIAL = 2, /* text such as <|im_end|> becomes its control token */
       BL_TOK_NO_EOS = 4         /* something follows: only bos */ };
struct bl_span { size_t begin, end; }; /* bytes */
enum bl_status bl_vocab_open(struct bl_vocab **out, const struct bl_gguf *); /* copies what it needs */
void bl_vocab_close(struct bl_vocab *);
uint32_t bl_vocab_size(const struct bl_vocab *);
bool bl_vocab_is_end(const struct bl_vocab *, int32_t id); /* generation stops here */
int32_t bl_vocab_bos(const struct bl_vocab *);              /* -1 = none */
/* Token ids of `text` (any bytes). *ids is malloc'ed; the caller frees it. */
enum bl_status bl_tokenize(const struct bl_vocab *, const char *text, size_t n_bytes, unsigned flags,
                           int32_t **ids, size_t *n_ids);
/* The same for a rendered conversation: in the user's bytes, sorted spans, nothing becomes a control token. */
enum bl_status bl_tokenize_chat(const struct bl_vocab *, const char *text, size_t n_bytes, const struct bl_span *user,
                                size_t n_user, unsigned flags, int32_t **ids, size_t *n_ids);
/* Bytes ready to print after `id`; never splits a UTF-8 sequence. The string is borrowed until the next call.
 * special: print control tokens literally. A sequence that begins with BOS loses the space that tokenising put
 * before its text; one that does not continues a text and keeps it. */
enum bl_status bl_text_create(struct bl_text **out, const struct bl_vocab *, bool special);
void bl_text_destroy(struct bl_text *);
enum bl_status bl_text_push(struct bl_text *, int32_t id, const char **bytes, size_t *n_bytes);
enum bl_status bl_text_flush(struct bl_text *, const char **bytes, size_t *n_bytes); /* held-back rest as U+FFFD */

/* ---- chat: from a conversation to a prompt, by the model's own template -------------------------------- */

struct bl_chat;
struct bl_conversation {         /* JSON texts, NUL-terminated */
    const char *messages;        /* array of objects with role and content, as OpenAI has them */
    const char *tools;           /* array; NULL: none */
    const char *variables;       /* object of more template variables; NULL: none */
    bool no_generation_prompt;   /* do not ask for an answer */
    bool as_given;               /* else fitted to what the template can take: contents as text or parts, … */
};
struct bl_prompt {
    char *text;                  /* NUL-terminated */
    size_t n_bytes;
    struct bl_span *user;        /* bytes that came from the conversation, for bl_tokenize_chat */
    size_t n_user;
};
/* source NULL: the file's template, or what this library brings for its architecture; BL_EUNAVAILABLE when there is
 * none. The file or the vocabulary may be NULL when a source is given. BL_EFORMAT names the template's line. */
enum bl_status bl_chat_open(struct bl_chat **out, const struct bl_gguf *, const struct bl_vocab *, const char *source,
                            size_t n_bytes);
void bl_chat_close(struct bl_chat *);
/* BL_EINVAL: no conversation, or the template refuses it, in the template's words. BL_ELIMIT: it does not end. */
enum bl_status bl_chat_prompt(const struct bl_chat *, const struct bl_conversation *, struct bl_prompt *out);
void bl_prompt_finish(struct bl_prompt *); /* zeroed is fine */

/* An answer as it streams, parted by the model's own marks (<think>, <|channel|>analysis<|message|>, ...), which are
 * taken out. The pieces may be cut anywhere. What is for the reader is text, calls of tools in harmony's form are not. */
enum bl_answer_part { BL_ANSWER_TEXT, BL_ANSWER_REASONING };
struct bl_answer;
typedef bool bl_answer_fn(void *arg, enum bl_answer_part, const char *bytes, size_t n_bytes); /* false: stop */
/* prompt: what the answer continues, since it may already open the reasoning; NULL: nothing. */
enum bl_status bl_answer_create(struct bl_answer **out, const struct bl_chat *, const struct bl_prompt *prompt);
void bl_answer_destroy(struct bl_answer *);
bool bl_answer_is_reasoning(const struct bl_answer *); /* where the next piece begins */
/* False: the callback said stop. End hands out what was held back as the beginning of a mark. */
bool bl_answer_push(struct bl_answer *, const char *bytes, size_t n_bytes, bl_answer_fn *, void *arg);
bool bl_answer_end(struct bl_answer *, bl_answer_fn *, void *arg);

/* ---- this machine's processor ------------------------------------------------------------------------- */

struct bl_threads {          /* how many threads, and why */
    uint32_t n;              /* for steps of few tokens, which wait for memory: the cores of one memory node */
    uint32_t n_prefill;      /* for steps of many: all cores, slower ones too, as they fetch their work */
    uint32_t n_physical;     /* physical cores the process may run on */
    uint32_t n_logical;      /* logical processors the process may run on */
    uint32_t n_nodes;        /* memory nodes that these lie beside */
    double   quota;          /* cgroup CPU limit, 0 = none */
    char     reason[160];    /* one sentence */
};
/* topology: NULL = this machine, otherwise an hwloc XML file or synthetic string ("pack:2 core:4 pu:2").
 * cgroup_root: NULL = this process's own cgroups. */
enum bl_status bl_threads_choose(struct bl_threads *out, const char *topology, const char *cgroup_root);
struct bl_options;
/* Writes lines such as "threads 8: 8 physical cores": threads, memory nodes and huge pages that an engine would get;
 * of a machine_file, the table of its devices. */
enum bl_status bl_machine_describe(void (*line)(void *arg, const char *text), void *arg, const struct bl_options *);
/* The machines that come with the library, by number; BL_EINVAL after the last. bl_options.machine_file takes the name. */
struct bl_machine_title {
    const char *name;        /* "dgx-spark" */
    char about[96];
};
enum bl_status bl_machine_known(uint32_t i, struct bl_machine_title *out);
struct bl_machine_cards {
    char id[64][32];
    uint32_t n;
};
/* The cards of the options' machine, in its order. */
enum bl_status bl_machine_cards(struct bl_machine_cards *out, const struct bl_options *);
/* Measures this machine: memory, kernels by type, meetings of threads, fixed costs; about 12 seconds, quick: 3. *json is
 * malloc'ed and the caller's: a machine file (configs/schema/machine.schema.json). line: its table for people; note: what
 * is going on; both may be NULL. */
struct bl_probe_options {
    bool quick;
    void (*line)(void *arg, const char *text);
    void (*note)(void *arg, const char *text);
    void *arg;
};
enum bl_status bl_probe(char **json, size_t *n_bytes, const struct bl_options *, const struct bl_probe_options *);
/* Writes lines such as "q4_k  dot_q4k_act_4__avx512" for the kernels this CPU gets; mask as in bl_options. */
enum bl_status bl_cpu_describe(void (*line)(void *arg, const char *text), void *arg, unsigned mask);

/* ---- engine ------------------------------------------------------------------------------------------- */

struct bl_engine;
struct bl_session;
struct bl_progress {                     /* while weights are read */
    uint64_t done_bytes, total_bytes;
    uint64_t elapsed_ns;
};
enum { BL_BATCH_TOKENS = 2048, BL_UBATCH_TOKENS = 512 }; /* the defaults */
/* 1 AVX2; 2 AVX-512 with VNNI, VBMI, GFNI; 4 NEON with dot products; 8 i8mm; 16 one row at a time; 32 SVE, 256 bits or more;
 * 64 AVX-VNNI; 128 AVX-512 VNNI in 256 bits; 256 AMX; 512 AVX-512 BF16 */
enum { BL_CPU_MASK_ALL = 1023 };
struct bl_placement_rules {              /* as llama.cpp has them; device names: "CPU", "CUDA1", or the machine's own */
    int32_t n_gpu_layers;                /* -ngl, the head counts as one; < 0: all */
    const char *const *override;         /* [n_overrides] -ot: "PATTERN=DEVICE", several with commas; the first match wins */
    uint32_t n_overrides, n_cpu_moe;     /* -ncmoe */
    bool cpu_moe, no_kv_offload;         /* -cmoe, -nkvo */
    const char *tensor_split, *split_mode, *devices; /* -ts, -sm, -dev; NULL: not given */
    int32_t main_gpu;                    /* -mg; 0: the first */
};
#define BL_CTX_MAX UINT64_MAX            /* a context as long as fits, at most what the model was trained with */
struct bl_options {                      /* zeroed = choose everything */
    const char *topology, *cgroup_root;  /* as bl_threads_choose */
    /* This machine as `ballast probe` wrote it, or one to plan for, also by its name; NULL: looked at. */
    const char *machine_file;
    /* Where everything goes, as `ballast plan -o` wrote it; NULL: planned now. What it says of context, batches, types and
     * threads holds where the options say nothing; those that contradict it in what memory depends on are refused. */
    const char *plan_file;
    const struct bl_placement_rules *rules; /* what they say goes there; excludes a plan file; NULL: none */
    const char *const *device_set;       /* [n_device_set] "cpu0.usable=8GiB", "gpu0.mem=24GiB", "link0.bps=12GB/s" */
    uint32_t n_device_set;
    const char *devices;                 /* "sim0:12GiB@16GB/s,sim1": besides the CPU, in this order; NULL = none */
    uint32_t watchdog_s;                 /* a step fails when no device finishes anything for so long; 0 = 120, 3600 if all is
                                          * on the CPU */
    bool virtual_clock;                  /* simulated devices, the CPU one of them, do not sleep; times are the model's */
    uint64_t ctx_tokens;                 /* 0 = trained context, limited to 4096; or BL_CTX_MAX */
    uint32_t batch_tokens;               /* logical batch, 0 = BL_BATCH_TOKENS */
    uint32_t ubatch_tokens;              /* physical batch, 0 = BL_UBATCH_TOKENS */
    uint32_t out_tokens;                 /* most logits rows of one step, 0 = one per session */
    uint32_t threads;                    /* for steps of few tokens; 0 = bl_threads_choose, or as timed */
    uint32_t threads_prefill;            /* for steps of many; 0 = threads if given, else bl_threads_choose */
    bool no_bind;                        /* leave threads and memory where the system puts them */
    bool calibrate, no_calibrate;        /* time the reading of memory always, never; else where the rule is in doubt */
    uint32_t max_sessions;               /* 0 = 1 */
    uint32_t cpu_mask;                   /* CPU flags allowed; 0 = all that this CPU has */
    bool scalar;                         /* only the scalar kernels: cpu mask 0 */
    bool exact;                          /* float weights, float activations, float KV unless types are given */
    bool no_mmap;                        /* read weights with large reads instead of mapping them */
    bool mlock;
    /* KV types by name, NULL = f16 (f32 with exact). "auto": f16, unless only a smaller one fits, or q8_0 gains much. */
    const char *type_k, *type_v;
    /* Tokens that bl_session_rewind can always take back, whatever the model keeps; counted from the longest that the
     * session has been, not anew after each rewind. Without, only what a window or recurrent state happens to hold
     * still; each costs a copy of the recurrent state, a row of a window. */
    uint32_t rewind_tokens;
    bool round_kv;                       /* deepseek4: cached rows in eight bits, as it was trained */
    bool round_index;                    /* deepseek4: rows and queries of the index in four bits, likewise */
    /* Rope of the layers that see the whole context; NULL and 0 = as the file says. */
    const char *rope_scaling;            /* "none", "linear" or "yarn" */
    float rope_freq_base, rope_freq_scale; /* theta; what distances are multiplied by, 1/4 for a context 4 times as long */
    uint32_t yarn_orig_ctx;              /* what the model was trained with before it was stretched */
    /* Uses of experts are counted, and what this file of earlier counts says is known, if there is one; NULL: neither. */
    const char *expert_file;
    const char *expert_policy;           /* of slots: "off", "fixed", "lru"; NULL: as the plan says */
    void (*progress)(void *arg, const struct bl_progress *);
    void *progress_arg;
    /* Asked many times a second while weights are read and while bl_decode computes, then by any of its threads; true:
     * they end with BL_ECANCELLED, and the engine can go on. So a handler of signals sets a flag, which this reads. NULL:
     * everything runs to its end. */
    bool (*stop)(void *stop_arg);
    void *stop_arg;
};
/* BL_ENOFIT: needs more memory than there is, message says how much; nothing was allocated. BL_EINVAL: a plan file for
 * another model or machine, with what differs. */
enum bl_status bl_open(struct bl_engine **out, const char *gguf_path, const struct bl_options *);
void bl_close(struct bl_engine *); /* destroy its sessions first */
const struct bl_gguf *bl_engine_gguf(const struct bl_engine *);
const struct bl_vocab *bl_engine_vocab(const struct bl_engine *); /* NULL: the file has none */
uint32_t bl_engine_n_vocab(const struct bl_engine *);             /* logits per row */
uint64_t bl_engine_ctx(const struct bl_engine *);                 /* tokens a session can hold */
uint64_t bl_engine_trained_ctx(const struct bl_engine *);         /* what the model was trained with */
void bl_engine_types(const struct bl_engine *, const char **type_k, const char **type_v); /* of its cache */

/* What a session keeps of its tokens, as bl_open would plan it; nothing is allocated for it. */
struct bl_state_line {                   /* the rows of one kind, of all layers that keep them */
    char name[32];                       /* "k", "v", "kv", ... */
    const char *law;                     /* "per token", "window", "per group", "fixed" */
    const char *type_name;               /* "f16" */
    uint32_t span_tokens;                /* of a window: how many it sees; of a group: how many share a row; else 1 */
    uint32_t layers;
    uint64_t row_bytes;                  /* in one layer */
    uint64_t rows, slack_rows;           /* likewise; slack: beyond the window itself, for steps of several tokens and
                                          * for taking tokens back */
    uint64_t bytes, slack_bytes;         /* in all layers; bytes are without the slack */
};
struct bl_state_info {
    uint64_t ctx_tokens;                 /* chosen where the options do not say */
    uint32_t ubatch_tokens;
    struct bl_state_line *line;
    uint32_t n_lines;
    uint64_t bytes, slack_bytes;         /* sums of the lines; together what a session's state takes */
};
/* From the header alone. Options that have nothing to do with state are ignored; NULL: defaults. */
enum bl_status bl_state_info_make(struct bl_state_info *out, const struct bl_gguf *, const struct bl_options *);
void bl_state_info_finish(struct bl_state_info *); /* zeroed is fine */

struct bl_memory_line {                  /* one row of the ledger */
    const char *device, *purpose;
    uint64_t planned_bytes;              /* before anything was allocated */
    uint64_t measured_bytes;             /* counted where memory was obtained */
};
uint32_t bl_engine_memory(const struct bl_engine *, uint32_t i, struct bl_memory_line *out); /* returns the count */

struct bl_expert_use {
    uint64_t n_tok;                      /* counted, with those of the file */
    uint64_t uses, hits;                 /* in layers with slots, since the engine was opened; of experts that sat in one */
    uint64_t moves, moved_bytes;         /* into slots, likewise */
    bool slots;                          /* false: there are none; uses are those in layers divided, hits those on cards */
};
bool bl_engine_expert_use(const struct bl_engine *, struct bl_expert_use *out); /* false: nothing is counted */
/* What is known by now, configs/schema/experts.schema.json; the file appears whole or not at all. */
enum bl_status bl_engine_save_experts(const struct bl_engine *, const char *path);

enum bl_status bl_session_create(struct bl_session **out, struct bl_engine *); /* BL_ELIMIT: max_sessions in use */
void bl_session_destroy(struct bl_session *);
uint64_t bl_session_n_tokens(const struct bl_session *);
/* Forgets everything after the first n tokens. BL_ELIMIT when the model's state cannot be taken back that far. */
enum bl_status bl_session_rewind(struct bl_session *, uint64_t n_tokens);
/* A session of its own that holds the same tokens. BL_ELIMIT: max_sessions in use. */
enum bl_status bl_session_fork(struct bl_session **out, const struct bl_session *from);
/* What the session holds, as a file that appears whole or not at all. */
enum bl_status bl_session_save(const struct bl_session *, const char *path);
/* Replaces what the session holds by what was saved. BL_EFORMAT: the file is damaged, or its model, KV types, context or
 * ubatch are others; BL_EUNSUPPORTED: another version of the format. The session keeps what it had. Only a file that
 * changes while it is read can leave it empty. */
enum bl_status bl_session_restore(struct bl_session *, const char *path);

struct bl_batch {                        /* any mix of sequences; tokens of one session in order */
    uint32_t n;
    const int32_t *token;
    struct bl_session *const *session;
    const uint8_t *want_logits;          /* NULL = last token of each session only */
};
/* One step over at most batch_tokens tokens, cut into physical batches. On failure no session has advanced
 * beyond the last whole physical batch. BL_EINVAL: id out of range; BL_ELIMIT: context full, or state that a step which
 * failed wrote over: rewind; BL_ECANCELLED: bl_options.stop said so. */
enum bl_status bl_decode(struct bl_engine *, const struct bl_batch *);
/* Row of batch entry i of the last bl_decode, n_vocab floats; borrowed until the next; NULL if not asked for. */
const float *bl_logits(const struct bl_engine *, uint32_t i);

/* ---- placements: what `ballast plan` shows ---------------------------------------------------------------- */

struct bl_plan_settings {                /* of a plan file: what options may leave to it */
    uint64_t ctx_tokens;
    uint32_t batch_tokens, ubatch_tokens;
    uint32_t threads, threads_prefill;   /* 0: not settled */
    char type_k[16], type_v[16];
    bool exact, no_mmap;
};
enum bl_status bl_plan_settings_read(struct bl_plan_settings *out, const char *plan_file);
struct bl_placement;                     /* where every tensor goes on a machine, why, and how fast that is */
struct bl_placement_lack {               /* of the nearest plan */
    char device[32];
    uint64_t bytes;                      /* so much more would do there */
};
struct bl_placement_options {            /* zeroed = choose everything */
    double prefill_weight;               /* what speed counts: 0 decode alone, 1 prefill alone */
    uint64_t reserve_bytes;              /* kept free on every card */
    uint64_t depth_tokens;               /* context at which speeds are predicted; 0: half of it, at most 4096 */
    bool may_shrink_ctx;                 /* where the context asked for does not fit */
    uint64_t least_ctx_tokens;           /* but not below this */
    struct bl_placement_lack *lack;      /* filled with BL_ENOFIT, which then names nothing that would fit; NULL */
    bool fixed_ubatch;                   /* ubatch_tokens as given, 0 included; else larger ones are tried too */
    bool peers;                          /* bl_placement_json says what other programs reach */
};
struct bl_speed {                        /* sd: of its natural logarithm, what constants and set-ups leave open */
    double tok_per_s, sd;
};
struct bl_placement_info {
    const char *model, *arch, *machine;  /* model: as the file calls itself */
    uint32_t n_layers;
    uint64_t ctx_tokens, asked_ctx_tokens, depth_tokens;
    uint32_t batch_tokens, ubatch_tokens;
    uint32_t stream_from_tok;            /* steps of so many tokens send experts in RAM to cards; 0: none */
    struct bl_speed decode, prefill;
    uint32_t threads, threads_prefill;   /* of the host, as predicted with */
    const char *type_k, *type_v;
};
struct bl_placement_device {
    const char *id, *name;
    uint64_t usable_bytes, budget_bytes, planned_bytes; /* budget: usable less the reserve; planned: the driver's too */
    uint64_t mem_bytes, driver_bytes;
    const char *shares;                  /* id of the device whose memory it is; NULL: its own */
    bool cpu;
    bool sends;                          /* a card that layers are on whose experts are in RAM */
    uint32_t sent_from_tok;              /* then: for steps of so many tokens they are quicker sent there than computed by
                                          * the host; 0: for none */
};
struct bl_placement_group {              /* consecutive layers with all their parts at the same places */
    uint32_t first, last;
    const char *attention, *experts;     /* ids of devices; experts NULL: these layers have none */
    const char *why_attention, *why_experts;
};
struct bl_placement_tensor {
    const char *device, *part, *why;
    int32_t layer;                       /* -1: outside of layers */
    uint64_t bytes;
};
/* From the header alone; devices are not touched. The machine is that of the options. BL_ENOFIT: what would fit. */
enum bl_status bl_placement_make(struct bl_placement **out, const struct bl_gguf *, const struct bl_options *,
                                 const struct bl_placement_options *);
void bl_placement_close(struct bl_placement *);
void bl_placement_describe(const struct bl_placement *, struct bl_placement_info *out);
uint32_t bl_placement_device(const struct bl_placement *, uint32_t i, struct bl_placement_device *out); /* the count */
uint32_t bl_placement_group(const struct bl_placement *, uint32_t i, struct bl_placement_group *out);   /* likewise */
uint32_t bl_placement_memory(const struct bl_placement *, uint32_t i, struct bl_memory_line *out);      /* likewise */
uint32_t bl_placement_note(const struct bl_placement *, uint32_t i, const char **text);                 /* likewise */
/* BL_EINVAL: no such tensor, with the nearest name. */
enum bl_status bl_placement_tensor(const struct bl_placement *, const char *name, struct bl_placement_tensor *out);
struct bl_part_bytes {                   /* weights of one part ("attn", "ffn", "experts", "embed", "head") on a device */
    const char *device, *part;
    uint64_t bytes;                      /* as in the file; blocks round up */
};
/* All that are not 0; *out is malloc'ed and the caller's. */
enum bl_status bl_placement_parts(const struct bl_placement *, struct bl_part_bytes **out, uint32_t *n);
struct bl_step_event {
    const char *device;                  /* whose stream */
    const char *from, *to;               /* of a copy, and of experts sent; else both the device */
    const char *what;                    /* a part, "copy", or "experts sent": to a card, and multiplied there */
    int32_t layer;                       /* -1: outside of layers, or a copy */
    double begin_ns, end_ns;
};
struct bl_predicted_step {
    uint32_t n_tok;
    uint64_t depth_tokens;               /* context before it */
    double ns;
    struct bl_step_event *event;         /* as enqueued; of a device one after the other */
    uint32_t n_events;
};
/* One token, or a chunk of a prompt of at most ubatch_tokens, as the simulation has it. */
enum bl_status bl_placement_step(const struct bl_placement *, uint32_t n_tok, struct bl_predicted_step *out);
void bl_predicted_step_finish(struct bl_predicted_step *); /* zeroed is fine */

enum bl_peer { BL_PEER_LLAMACPP, BL_PEER_IK, BL_PEER_DS4, BL_PEER_KTRANSFORMERS, BL_N_PEERS };
const char *bl_peer_name(enum bl_peer);  /* "llama.cpp"; NULL: none such */
struct bl_peer_flags {                   /* a command line of the peer's server, but for its name and the model */
    char **arg, **note;                  /* note: what the arguments cannot say of the placement */
    uint32_t n_args, n_notes;
    char environment[64];                /* "NAME=value" that goes with it, or empty */
};
/* The nearest that the peer's flags can say. BL_EUNSUPPORTED: it has none for that. */
enum bl_status bl_placement_flags(const struct bl_placement *, enum bl_peer, struct bl_peer_flags *out);
void bl_peer_flags_finish(struct bl_peer_flags *); /* zeroed is fine */
struct bl_peer_speed {                   /* as the placement's own: of one token at its depth, of a step of a prompt */
    struct bl_speed decode, prefill;     /* tok_per_s 0: nothing is known of the machine's */
    uint32_t stream_from_tok;            /* from where on it gains if experts in RAM are sent to cards; 0: never */
};
/* What the peer would reach on the machine with those flags, by constants of its own from public measurements; whether its
 * buffers fit is not asked. BL_EUNSUPPORTED: it does not run so, and why. */
enum bl_status bl_placement_peer(const struct bl_placement *, enum bl_peer, struct bl_peer_speed *out);
/* All of it as JSON, a plan file (configs/schema/plan.schema.json); *text is malloc'ed and the caller's. */
enum bl_status bl_placement_json(const struct bl_placement *, char **text, size_t *n_bytes);
/* One decode step and one prefill step as they are predicted, for Perfetto (configs/schema/trace.schema.json); likewise.
 * BL_EINVAL: nothing is known of the machine's speed. */
enum bl_status bl_placement_trace(const struct bl_placement *, char **text, size_t *n_bytes);

/* A plan file as it is written, without its model and machine: to be looked at and compared. */
struct bl_saved_plan;
struct bl_saved_place {
    const char *part, *device;           /* part: "embed", "attn", "state", "ffn", "experts", "head" */
    int32_t first, last;                 /* layers; -1: outside of them */
    int32_t expert_first, expert_last;   /* -1: all */
};
enum bl_status bl_saved_plan_load(struct bl_saved_plan **out, const char *plan_file);
/* what: names the text in messages. */
enum bl_status bl_saved_plan_parse(struct bl_saved_plan **out, const char *what, const char *text, size_t n_bytes);
void bl_saved_plan_close(struct bl_saved_plan *);
void bl_saved_plan_describe(const struct bl_saved_plan *, struct bl_placement_info *out); /* speeds 0: not written */
uint32_t bl_saved_plan_device(const struct bl_saved_plan *, uint32_t i, struct bl_placement_device *out); /* the count */
uint32_t bl_saved_plan_memory(const struct bl_saved_plan *, uint32_t i, struct bl_memory_line *out);      /* likewise */
/* Rows of single experts take them from their layer's; state and ffn without a row are with attn. */
uint32_t bl_saved_plan_place(const struct bl_saved_plan *, uint32_t i, struct bl_saved_place *out);       /* likewise */

/* ---- measuring: what `ballast bench` reports ------------------------------------------------------------- */

struct bl_token_cost {                   /* of one token at the end of n_tokens others */
    uint64_t weight_bytes, head_bytes;   /* weights it reads: in the layers; and for its logits */
    uint64_t weight_macs, head_macs;     /* multiply-adds with weights, likewise */
    uint64_t state_bytes;                /* cached state it reads: rows that attention and recurrences look at */
    uint32_t layers;
};
enum bl_status bl_engine_token_cost(const struct bl_engine *, uint64_t n_tokens, struct bl_token_cost *out);
struct bl_op_time {                      /* one kind of step, on the first thread of one device */
    char name[40];                       /* "experts q4_k", "head matmul q6_k" */
    uint64_t steps, barriers;            /* barriers: meetings that follow such steps */
    uint64_t run_ns, wait_ns;            /* wait: for the other threads after it */
};
/* Timing of steps: off at first and then free. from_zero forgets what was counted. */
void bl_engine_profile(struct bl_engine *, bool on, bool from_zero);
uint32_t bl_engine_op_time(const struct bl_engine *, uint32_t i, struct bl_op_time *out); /* returns the count */

/* What streams of devices do, noted from the next step on, at most a million events; what was noted before is
 * forgotten. */
enum bl_status bl_engine_trace(struct bl_engine *, bool on);
/* All that was noted, as bl_placement_trace has what was predicted; *text is malloc'ed and the caller's. */
enum bl_status bl_engine_trace_json(const struct bl_engine *, char **text, size_t *n_bytes);
/* A line: time, copies hidden behind computing, how idle each device was, bytes over links. */
void bl_engine_trace_describe(const struct bl_engine *, void (*line)(void *arg, const char *text), void *arg);

/* ---- sampling ----------------------------------------------------------------------------------------- */

struct bl_sampling {                     /* zeroed = greedy */
    float temp;                          /* 0 = take the largest logit */
    uint32_t top_k;                      /* 0 = off */
    float top_p, min_p;                  /* top_p 0 or >= 1 = off; min_p 0 = off */
    float repeat_penalty;                /* 0 or 1 = off */
    uint32_t repeat_last;                /* tokens it looks back, 0 = 64 */
    uint64_t seed;
};
struct bl_sampler;
enum bl_status bl_sampler_create(struct bl_sampler **out, const struct bl_sampling *, uint32_t n_vocab);
void bl_sampler_destroy(struct bl_sampler *);
void bl_sampler_accept(struct bl_sampler *, int32_t id);                    /* enters the repetition window */
int32_t bl_sampler_pick(struct bl_sampler *, const float *logits);          /* does not accept it; NaN never wins */

/* ---- model files made up: the shape of a known model, random weights ------------------------------------ */

struct bl_synth;
struct bl_synth_options {            /* zeroed, but for the shape: as published */
    const char *shape;               /* name of a shape that comes with the library; with json, only for messages */
    const char *json;                /* a shape of one's own, see configs/README.md; NULL: none */
    size_t json_bytes;
    const char *recipe;              /* types, see bl_synth_recipe; NULL: the shape's own */
    uint32_t layers, vocab;          /* 0 = the shape's own; drafting blocks go with the published number only */
    uint64_t seed;
    bool no_data;                    /* a header alone */
    bool (*progress)(void *arg, const struct bl_progress *); /* false: stop, BL_ECANCELLED */
    void *progress_arg;
};
struct bl_synth_info {
    const char *shape, *about, *arch, *recipe;
    uint32_t layers, vocab, tensors;
    uint64_t params, published_params; /* published: of all layers and the whole vocabulary; 0 = not known */
    uint64_t weight_bytes;
};
const char *bl_synth_shape(uint32_t i);                       /* NULL after the last */
const char *bl_synth_recipe(uint32_t i, const char **types);  /* likewise; types: what it stands for */
enum bl_status bl_synth_open(struct bl_synth **out, const struct bl_synth_options *); /* strings are borrowed */
void bl_synth_close(struct bl_synth *);
void bl_synth_describe(const struct bl_synth *, struct bl_synth_info *out);
const struct bl_gguf *bl_synth_gguf(const struct bl_synth *); /* its header; a model to look at and plan for */
enum bl_status bl_synth_write(const struct bl_synth *, const char *path); /* whole or not at all */

#endif
