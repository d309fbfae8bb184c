/* Write a Cuttlefish block in C: the whole contract in one header, without a libc.

   A block answers the input, and then each event, with a command. The host carries the command out and answers with an event:

       #include "cuttlefish.h"

       static cf_command begin(cf_json input) {
         cf_text name;
         if (!cf_get_text(input, "name", &name)) return cf_bad_input();
         cf_text prompt = CF_CONCAT(CF_TEXT("Greet "), name, CF_TEXT(" in one short sentence."));
         return cf_infer((cf_inference){.prompt = prompt, .max_tokens = 32});
       }

       static cf_command next(const cf_event *event) {
         switch (event->kind) {
           case CF_INFER_DONE: return cf_done(cf_json_of_text(event->text));
           default: return cf_unexpected(event);
         }
       }

       CF_BLOCK("{name: text}", "text", begin, next)

   How long things live:

   - texts and values of the input: until the next run. So does what `cf_keep` copies;
   - texts of an event, and what `cf_step_memory`, `CF_CONCAT` and `cf_json_of_…` give: until `next` returns;
   - a command: until the next one is made. Return it straight away;
   - static variables: for ever, so `begin` must set the block's state anew.

   Neither an unreadable input nor an event that does not answer the last command reaches the block; they end it with the codes
   `bad_input` and `bad_event`. There is nobody to tell of a lack of memory in the middle of a step: it ends the guest with a
   trap, as a stack that overflows does. Include this header in one file of a block only. */

#ifndef CUTTLEFISH_H
#define CUTTLEFISH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CF_UNUSED __attribute__((unused))
#define CF_API static CF_UNUSED
#define CF_EXPORT(name) __attribute__((export_name(name), used, visibility("default")))

/* A piece of UTF-8, not ended by a zero: it may hold any character, NUL too. */
typedef struct {
  const char *bytes;
  size_t len;
} cf_text;

#define CF_TEXT(literal) ((cf_text){"" literal, sizeof(literal) - 1})

/* A JSON value, as it is written. `{0}` is no value. */
typedef struct {
  const char *start;
  size_t len;
} cf_json;

#define CF_JSON(literal) ((cf_json){"" literal, sizeof(literal) - 1})

/* What a function below has just written for the host. */
typedef enum {
  CF_NO_COMMAND,
  CF_INFER,
  CF_EMBED,
  CF_OPEN,
  CF_SLICE,
  CF_SLICE_BYTES,
  CF_PAGE_TEXT,
  CF_PAGE_TEXT_OPT,
  CF_DOCUMENT_TEXT,
  CF_PAGE_IMAGE,
  CF_IMAGE_OP,
  CF_EMIT,
  CF_DONE,
  CF_FAIL
} cf_command_kind;

typedef struct {
  cf_command_kind kind;
} cf_command;

typedef enum {
  CF_INFER_DONE,
  CF_EMBEDDED,
  CF_OPENED,
  CF_SLICED,
  CF_SLICED_BYTES,
  CF_PAGE_TEXTED,
  CF_PAGE_TEXT_ATTEMPTED,
  CF_PAGE_IMAGED,
  CF_EMITTED
} cf_event_kind;

/* What a file holds. Kinds that a newer host may have are seen as CF_KIND_BINARY. */
typedef enum { CF_KIND_TEXT, CF_KIND_IMAGE, CF_KIND_DOCUMENT, CF_KIND_BINARY } cf_media_kind;

typedef struct {
  const double *values;
  size_t len;
} cf_vector;

/* What the host answers. Only the fields named beside an event are set for it. A text with `bytes` NULL is absent. */
typedef struct {
  cf_event_kind kind;
  cf_text text;           /* infer_done, sliced, sliced_bytes (the decoded bytes), page_texted, page_text_attempted (NULL: see reason) */
  uint32_t tokens_out;    /* infer_done */
  cf_text finish_reason;  /* infer_done; NULL from an older host */
  const cf_vector *vectors; /* embedded */
  size_t vector_count;      /* embedded */
  uint32_t handle;        /* opened, page_imaged */
  uint64_t len;           /* opened, page_imaged: bytes of the file */
  cf_media_kind media;    /* opened */
  cf_text format;         /* opened with CF_KIND_IMAGE; page_imaged, where it is NULL from an older host */
  bool has_frames;        /* page_imaged: whether `frames` is set, which only the answer to cf_frame does */
  uint32_t frames;        /* page_imaged: how many the image has of which one was taken */
  uint32_t pages;         /* opened with CF_KIND_DOCUMENT */
  bool has_text_layer;    /* opened with CF_KIND_DOCUMENT */
  uint64_t next_offset;   /* sliced, sliced_bytes: where to read on */
  bool has_images;        /* page_texted: whether `images` is set */
  uint32_t images;        /* page_texted: how many images lie on the page */
  bool has_coverage;      /* page_texted: whether `coverage` is set */
  double coverage;        /* page_texted: which part of the page they cover, from 0 to 1 */
  cf_text reason;         /* page_text_attempted: code and reason why there is no text; NULL if there is */
} cf_event;

/* ---- Memory ---- */

extern unsigned char __heap_base;

/* Compilers call these for copies and clearing, also where no libc is linked. A libc that is linked takes its own. */
__attribute__((weak)) void *memcpy(void *restrict to, const void *restrict from, size_t len) {
  unsigned char *out = to;
  const unsigned char *in = from;
  while (len--) *out++ = *in++;
  return to;
}
__attribute__((weak)) void *memset(void *to, int byte, size_t len) {
  unsigned char *out = to;
  while (len--) *out++ = (unsigned char)byte;
  return to;
}

CF_API void cf_copy_(char *to, const char *from, size_t len) {
  if (len) memcpy(to, from, len);
}

typedef struct cf_free_ {
  struct cf_free_ *next;
} cf_free_;

static uintptr_t cf_top_;
static cf_free_ *cf_free_lists_[32];

CF_API int cf_class_(size_t len) {
  int class = 6;
  while (class < 31 && ((size_t)1 << class) < len) class++;
  return class;
}

/* Memory until it is given back, or NULL. Pieces are powers of two, and a piece that was given back is used again. */
CF_API void *cf_take(size_t len) {
  int class = cf_class_(len);
  size_t size = (size_t)1 << class;
  if (len > size) return NULL;
  if (cf_free_lists_[class]) {
    cf_free_ *found = cf_free_lists_[class];
    cf_free_lists_[class] = found->next;
    return found;
  }
  if (!cf_top_) cf_top_ = ((uintptr_t)&__heap_base + 63) & ~(uintptr_t)63;
  uint64_t end = (uint64_t)cf_top_ + size, have = (uint64_t)__builtin_wasm_memory_size(0) << 16;
  if (end > UINT32_MAX) return NULL;
  if (end > have && __builtin_wasm_memory_grow(0, (size_t)((end - have + 65535) >> 16)) == (size_t)-1) return NULL;
  void *found = (void *)cf_top_;
  cf_top_ = (uintptr_t)end;
  return found;
}

/* Gives back what `cf_take(len)` gave, with the same `len`. */
CF_API void cf_give(void *memory, size_t len) {
  if (!memory) return;
  cf_free_ *freed = memory;
  int class = cf_class_(len);
  freed->next = cf_free_lists_[class];
  cf_free_lists_[class] = freed;
}

typedef struct cf_chunk_ {
  struct cf_chunk_ *next;
  size_t size, used;
} cf_chunk_;

typedef struct {
  cf_chunk_ *chunks;
} cf_arena_;

static cf_arena_ cf_step_arena_, cf_run_arena_;

CF_API void *cf_arena_take_(cf_arena_ *arena, size_t len) {
  if (len > UINT32_MAX - 8) __builtin_trap();
  len = (len + 7) & ~(size_t)7;
  cf_chunk_ *chunk = arena->chunks;
  if (!chunk || chunk->size - chunk->used < len) {
    size_t size = chunk ? chunk->size * 2 : 4096;
    if (size < len + sizeof *chunk) size = len + sizeof *chunk;
    chunk = cf_take(size);
    if (!chunk) __builtin_trap();
    chunk->size = (size_t)1 << cf_class_(size);
    chunk->used = sizeof *chunk;
    chunk->next = arena->chunks;
    arena->chunks = chunk;
  }
  void *found = (char *)chunk + chunk->used;
  chunk->used += len;
  return found;
}

/* Keeps the largest chunk, so that a step like the last one needs nothing new. */
CF_API void cf_arena_clear_(cf_arena_ *arena) {
  cf_chunk_ *kept = arena->chunks;
  for (cf_chunk_ *chunk = kept; chunk; chunk = chunk->next)
    if (chunk->size > kept->size) kept = chunk;
  for (cf_chunk_ *chunk = arena->chunks, *next; chunk; chunk = next) {
    next = chunk->next;
    if (chunk != kept) cf_give(chunk, chunk->size);
  }
  arena->chunks = kept;
  if (kept) {
    kept->next = NULL;
    kept->used = sizeof *kept;
  }
}

/* Memory until `next` returns. Ends the guest when there is none. */
CF_API void *cf_step_memory(size_t len) { return cf_arena_take_(&cf_step_arena_, len); }

/* Memory until the next run. Nothing of it is freed before: for state that is made once. */
CF_API void *cf_run_memory(size_t len) { return cf_arena_take_(&cf_run_arena_, len); }

/* A copy of a text that outlasts the step: it is good until the next run. */
CF_API cf_text cf_keep(cf_text text) {
  char *kept = cf_run_memory(text.len + 1);
  cf_copy_(kept, text.bytes, text.len);
  return (cf_text){kept, text.len};
}

/* ---- Text ---- */

CF_API bool cf_equal(cf_text a, cf_text b) {
  if (a.len != b.len) return false;
  for (size_t i = 0; i < a.len; i++)
    if (a.bytes[i] != b.bytes[i]) return false;
  return true;
}

/* A whole number as text, good for the step under way. */
CF_API cf_text cf_number_text(uint64_t number) {
  char *end = (char *)cf_step_memory(24) + 24, *start = end;
  do *--start = (char)('0' + number % 10);
  while (number /= 10);
  return (cf_text){start, (size_t)(end - start)};
}

CF_API cf_text cf_concat(const cf_text *parts, size_t count) {
  size_t len = 0;
  for (size_t i = 0; i < count; i++) len += parts[i].len;
  char *joined = cf_step_memory(len + 1);
  len = 0;
  for (size_t i = 0; i < count; i++) {
    cf_copy_(joined + len, parts[i].bytes, parts[i].len);
    len += parts[i].len;
  }
  return (cf_text){joined, len};
}

/* Texts joined to one, good for the step under way: CF_CONCAT(CF_TEXT("page "), cf_number_text(page)). */
#define CF_CONCAT(...) cf_concat((cf_text[]){__VA_ARGS__}, sizeof((cf_text[]){__VA_ARGS__}) / sizeof(cf_text))

/* ---- Writing JSON ---- */

/* Writes one JSON value, with commas where they belong. Static ones may be used again and again: `cf_clear` keeps their memory. */
typedef struct {
  char *bytes;
  size_t len, capacity;
  bool needs_comma;
} cf_writer;

CF_API void cf_clear(cf_writer *w) {
  w->len = 0;
  w->needs_comma = false;
}

/* What was written. Good until the next write. */
CF_API cf_json cf_written(const cf_writer *w) { return (cf_json){w->bytes, w->len}; }

CF_API void cf_reserve_(cf_writer *w, size_t more) {
  if (more <= w->capacity - w->len) return;
  if (more > UINT32_MAX - w->len) __builtin_trap();
  size_t capacity = (size_t)1 << cf_class_(w->len + more);
  char *bytes = cf_take(w->len + more < 4096 ? (capacity = 4096) : capacity);
  if (!bytes || capacity < w->len + more) __builtin_trap();
  cf_copy_(bytes, w->bytes, w->len);
  cf_give(w->bytes, w->capacity);
  w->bytes = bytes;
  w->capacity = capacity;
}

CF_API void cf_raw_(cf_writer *w, const char *bytes, size_t len) {
  cf_reserve_(w, len);
  cf_copy_(w->bytes + w->len, bytes, len);
  w->len += len;
}

CF_API void cf_byte_(cf_writer *w, char byte) {
  cf_reserve_(w, 1);
  w->bytes[w->len++] = byte;
}

CF_API void cf_separate_(cf_writer *w) {
  if (w->needs_comma) cf_byte_(w, ',');
  w->needs_comma = true;
}

CF_API void cf_open_(cf_writer *w, char bracket) {
  cf_separate_(w);
  cf_byte_(w, bracket);
  w->needs_comma = false;
}

CF_API void cf_close_(cf_writer *w, char bracket) {
  cf_byte_(w, bracket);
  w->needs_comma = true;
}

CF_API void cf_object_begin(cf_writer *w) { cf_open_(w, '{'); }
CF_API void cf_object_end(cf_writer *w) { cf_close_(w, '}'); }
CF_API void cf_list_begin(cf_writer *w) { cf_open_(w, '['); }
CF_API void cf_list_end(cf_writer *w) { cf_close_(w, ']'); }

CF_API void cf_put_text(cf_writer *w, cf_text text) {
  static const char digits[] = "0123456789abcdef";
  cf_separate_(w);
  cf_byte_(w, '"');
  size_t start = 0;
  for (size_t i = 0; i < text.len; i++) {
    unsigned char byte = (unsigned char)text.bytes[i];
    if (byte >= 0x20 && byte != '"' && byte != '\\') continue;
    cf_raw_(w, text.bytes + start, i - start);
    start = i + 1;
    if (byte == '"' || byte == '\\') {
      char escape[2] = {'\\', (char)byte};
      cf_raw_(w, escape, 2);
    } else if (byte == '\n') {
      cf_raw_(w, "\\n", 2);
    } else {
      char escape[6] = {'\\', 'u', '0', '0', digits[byte >> 4], digits[byte & 15]};
      cf_raw_(w, escape, 6);
    }
  }
  cf_raw_(w, text.bytes + start, text.len - start);
  cf_byte_(w, '"');
}

/* The name of a field; its value is what is put next. */
CF_API void cf_key(cf_writer *w, const char *name) {
  size_t len = 0;
  while (name[len]) len++;
  cf_put_text(w, (cf_text){name, len});
  cf_byte_(w, ':');
  w->needs_comma = false;
}

CF_API void cf_put_json(cf_writer *w, cf_json value) {
  cf_separate_(w);
  cf_raw_(w, value.start, value.len);
}

CF_API void cf_put_literal_(cf_writer *w, const char *word, size_t len) {
  cf_separate_(w);
  cf_raw_(w, word, len);
}

CF_API void cf_put_null(cf_writer *w) { cf_put_literal_(w, "null", 4); }
CF_API void cf_put_bool(cf_writer *w, bool value) { cf_put_literal_(w, value ? "true" : "false", value ? 4 : 5); }

CF_API void cf_put_u64(cf_writer *w, uint64_t number) {
  char digits[20];
  size_t at = sizeof digits;
  do digits[--at] = (char)('0' + number % 10);
  while (number /= 10);
  cf_put_literal_(w, digits + at, sizeof digits - at);
}

CF_API void cf_put_i64(cf_writer *w, int64_t number) {
  if (number >= 0) {
    cf_put_u64(w, (uint64_t)number);
    return;
  }
  cf_put_literal_(w, "-", 1);
  w->needs_comma = false;
  cf_put_u64(w, 0 - (uint64_t)number);
}

/* ---- Fractions. A number is kept as the sum of two doubles, which has 106 bits: enough to round as IEEE 754 says, but for numbers
   that lie within 1e-14 of their last digit from the middle between two doubles. ---- */

typedef struct {
  double high, low;
} cf_pair_;

CF_API cf_pair_ cf_multiply_(cf_pair_ a, cf_pair_ b) {
  const double split = 134217729.0; /* 2^27 + 1 */
  double t = split * a.high, ah = t - (t - a.high), al = a.high - ah;
  t = split * b.high;
  double bh = t - (t - b.high), bl = b.high - bh;
  double high = a.high * b.high, low = ((ah * bh - high) + ah * bl + al * bh) + al * bl;
  low += a.high * b.low + a.low * b.high;
  double sum = high + low;
  return (cf_pair_){sum, low - (sum - high)};
}

/* number × 2^scale × 10^exponent. */
CF_API cf_pair_ cf_scaled_(cf_pair_ number, int exponent) {
  static const cf_pair_ powers[2][9] = {
      {{1e1, 0}, {1e2, 0}, {1e4, 0}, {1e8, 0}, {1e16, 0}, {1e32, -5366162204393472.0}, {1e64, -2.1320419009454396e+47},
       {1e128, -7.51744869165182e+111}, {1e256, -3.012765990014054e+239}},
      {{1e-1, -5.551115123125783e-18}, {1e-2, -2.0816681711721684e-19}, {1e-4, -4.79217360238593e-21}, {1e-8, -2.092256083012847e-25},
       {1e-16, 2.0902213275965398e-33}, {1e-32, -5.59673099762419e-49}, {1e-64, 3.469426116645307e-81},
       {1e-128, -5.401408859568103e-145}, {1e-256, 2.2671708827212437e-273}}};
  int rest = exponent < 0 ? -exponent : exponent;
  for (int i = 0; i < 9; i++)
    if (rest >> i & 1) number = cf_multiply_(number, powers[exponent < 0][i]);
  return number;
}

CF_API cf_pair_ cf_pair_of_(uint64_t digits) {
  double high = (double)(digits >> 11 << 11);
  return (cf_pair_){high, (double)(digits & 2047)};
}

CF_API double cf_power_of_two_(int exponent) {
  uint64_t bits = (uint64_t)(exponent + 1023) << 52;
  double value;
  __builtin_memcpy(&value, &bits, 8);
  return value;
}

/* The double nearest to digits × 10^exponent. */
CF_API double cf_decimal_(uint64_t digits, int exponent) {
  if (!digits || exponent < -400) return 0;
  if (exponent > 400) return __builtin_inf();
  /* Far from 1, products would lose their low half or overflow: they are made nearer to 1 and moved back by a power of two. */
  int shift = exponent > 200 ? -300 : exponent < -200 ? 300 : 0;
  cf_pair_ pair = cf_pair_of_(digits);
  double move = cf_power_of_two_(shift);
  pair.high *= move;
  pair.low *= move;
  double sum = pair.high + pair.low;
  pair = (cf_pair_){sum, pair.low - (sum - pair.high)};
  if (exponent < -300) {
    pair = cf_scaled_(pair, -200);
    pair.high *= cf_power_of_two_(600), pair.low *= cf_power_of_two_(600);
    pair = cf_scaled_(pair, exponent + 200);
    shift = 900;
  } else {
    pair = cf_scaled_(pair, exponent);
  }
  double value = pair.high + pair.low;
  if (shift > 600) value *= cf_power_of_two_(600 - shift), shift = 600;
  return value * cf_power_of_two_(-shift);
}

/* Writes a number so that it reads as the same double, in few digits. What is not finite is written as no JSON, and refused. */
CF_API void cf_put_number(cf_writer *w, double number) {
  uint64_t bits;
  __builtin_memcpy(&bits, &number, 8);
  bool negative = bits >> 63;
  double size = negative ? -number : number;
  if (!(size <= 1.7976931348623157e308)) {
    cf_put_literal_(w, "NaN", 3);
    return;
  }
  uint64_t digits = 0;
  int exponent = 0;
  if (size != 0) {
    /* 10^guess <= size, or one less: log10(2) × the exponent in base two */
    int binary = (int)(bits >> 52 & 2047), guess;
    double normal = size;
    int shift = 0;
    if (binary < 400) normal *= cf_power_of_two_(500), shift = 500;
    if (binary > 1600) normal *= cf_power_of_two_(-500), shift = -500;
    uint64_t again;
    __builtin_memcpy(&again, &normal, 8);
    guess = ((int)(again >> 52 & 2047) - 1023 - shift) * 30103 / 100000 - 1;
    for (int precision = 15; precision <= 18; precision++) {
      exponent = guess - precision + 1;
      cf_pair_ pair = {normal, 0};
      /* normal is size × 2^shift: the power of two is taken back halfway, where nothing is lost */
      int half = -exponent / 2;
      pair = cf_scaled_(pair, half);
      pair.high *= cf_power_of_two_(-shift), pair.low *= cf_power_of_two_(-shift);
      pair = cf_scaled_(pair, -exponent - half);
      double low = pair.low + 0.5;
      uint64_t whole = (uint64_t)pair.high;
      double fraction = pair.high - (double)whole + low;
      digits = fraction < 0 ? whole - 1 : whole + (uint64_t)fraction;
      if (cf_decimal_(digits, exponent) == size) break;
    }
    while (digits % 10 == 0) digits /= 10, exponent++;
  }
  cf_separate_(w);
  w->needs_comma = false;
  if (negative) cf_byte_(w, '-');
  while (exponent > 0 && exponent <= 3 && digits < 1000000000000ull) digits *= 10, exponent--; /* a small whole number as such */
  char text[20];
  int len = 0, at = 20;
  for (uint64_t rest = digits; len == 0 || rest; rest /= 10, len++) text[--at] = (char)('0' + rest % 10);
  if (exponent < 0 && exponent > -len) { /* 12.5 */
    cf_raw_(w, text + at, (size_t)(len + exponent));
    cf_byte_(w, '.');
    cf_raw_(w, text + 20 + exponent, (size_t)-exponent);
  } else if (exponent < 0 && exponent > -len - 5) { /* 0.00125 */
    cf_raw_(w, "0.0000", (size_t)(2 - exponent - len));
    cf_raw_(w, text + at, (size_t)len);
  } else {
    cf_raw_(w, text + at, (size_t)len);
    if (exponent != 0) {
      cf_byte_(w, 'e');
      cf_put_i64(w, exponent);
    }
  }
  w->needs_comma = true;
}

static cf_writer cf_value_writer_;

CF_API cf_json cf_step_copy_(cf_json value) {
  char *copy = cf_step_memory(value.len + 1);
  cf_copy_(copy, value.start, value.len);
  return (cf_json){copy, value.len};
}

/* A value for `cf_done` and `cf_emit`, good for the step under way. */
CF_API cf_json cf_json_of_text(cf_text text) {
  cf_clear(&cf_value_writer_);
  cf_put_text(&cf_value_writer_, text);
  return cf_step_copy_(cf_written(&cf_value_writer_));
}

/* The same for a whole number. */
CF_API cf_json cf_json_of_u64(uint64_t number) {
  cf_text text = cf_number_text(number);
  return (cf_json){text.bytes, text.len};
}

/* ---- Reading JSON ---- */

#define CF_MOST_LEVELS 512 /* of brackets in brackets; deeper JSON counts as unreadable */

CF_API const char *cf_space_(const char *at, const char *end) {
  while (at < end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t')) at++;
  return at;
}

CF_API int cf_hex_(const char *at, const char *end) {
  if (end - at < 4) return -1;
  int value = 0;
  for (int i = 0; i < 4; i++) {
    char c = at[i];
    int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

/* Behind a string that starts at a quote, or NULL. */
CF_API const char *cf_skip_string_(const char *at, const char *end) {
  for (at++; at < end; at++) {
    unsigned char c = (unsigned char)*at;
    if (c == '"') return at + 1;
    if (c < 0x20) return NULL;
    if (c != '\\') continue;
    if (++at == end) return NULL;
    switch (*at) {
      case '"': case '\\': case '/': case 'b': case 'f': case 'n': case 'r': case 't': break;
      case 'u':
        if (cf_hex_(at + 1, end) < 0) return NULL;
        at += 4;
        break;
      default: return NULL;
    }
  }
  return NULL;
}

CF_API const char *cf_skip_digits_(const char *at, const char *end) {
  const char *start = at;
  while (at < end && *at >= '0' && *at <= '9') at++;
  return at == start ? NULL : at;
}

CF_API const char *cf_skip_number_(const char *at, const char *end) {
  if (at < end && *at == '-') at++;
  if (at < end && *at == '0') at++;
  else if (!(at = cf_skip_digits_(at, end))) return NULL;
  if (at < end && *at == '.' && !(at = cf_skip_digits_(at + 1, end))) return NULL;
  if (at < end && (*at == 'e' || *at == 'E')) {
    at++;
    if (at < end && (*at == '+' || *at == '-')) at++;
    at = cf_skip_digits_(at, end);
  }
  return at;
}

CF_API const char *cf_skip_word_(const char *at, const char *end, const char *word) {
  for (; *word; word++, at++)
    if (at == end || *at != *word) return NULL;
  return at;
}

/* Behind a value, or NULL where there is none. Checks all of its syntax, without recursion. */
CF_API const char *cf_skip_(const char *at, const char *end) {
  uint32_t is_object[CF_MOST_LEVELS / 32];
  int level = 0;
  for (;;) {
    at = cf_space_(at, end);
    if (at == end) return NULL;
    bool opened = false;
    switch (*at) {
      case '{': case '[': {
        if (level == CF_MOST_LEVELS) return NULL;
        uint32_t bit = 1u << (level & 31);
        if (*at == '{') is_object[level >> 5] |= bit;
        else is_object[level >> 5] &= ~bit;
        level++;
        opened = true;
        at = cf_space_(at + 1, end);
        break;
      }
      case '"': at = cf_skip_string_(at, end); break;
      case 't': at = cf_skip_word_(at, end, "true"); break;
      case 'f': at = cf_skip_word_(at, end, "false"); break;
      case 'n': at = cf_skip_word_(at, end, "null"); break;
      default: at = cf_skip_number_(at, end);
    }
    if (!at) return NULL;
    for (;;) { /* behind a value, or behind an opening bracket */
      if (level == 0) return at;
      bool object = is_object[(level - 1) >> 5] >> ((level - 1) & 31) & 1;
      at = cf_space_(at, end);
      if (at == end) return NULL;
      if (*at == (object ? '}' : ']')) {
        at++;
        level--;
        opened = false;
        continue;
      }
      if (!opened) {
        if (*at != ',') return NULL;
        at = cf_space_(at + 1, end);
      }
      if (object) {
        if (at == end || *at != '"' || !(at = cf_skip_string_(at, end))) return NULL;
        at = cf_space_(at, end);
        if (at == end || *at != ':') return NULL;
        at++;
      }
      break;
    }
  }
}

/* The one value that a message holds, or `{0}`. */
CF_API cf_json cf_whole_(const char *start, size_t len) {
  const char *end = start + len, *at = cf_space_(start, end), *behind = cf_skip_(at, end);
  if (!behind || cf_space_(behind, end) != end) return (cf_json){0};
  return (cf_json){at, (size_t)(behind - at)};
}

/* Decodes a checked string from its opening quote on. It never gets longer, so `to` may be where it stands. */
CF_API cf_text cf_decode_(const char *at, char *to) {
  char *out = to;
  for (at++; *at != '"';) {
    if (*at != '\\') {
      *out++ = *at++;
      continue;
    }
    char c = at[1];
    at += 2;
    if (c != 'u') {
      *out++ = c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c == 'b' ? '\b' : c == 'f' ? '\f' : c;
      continue;
    }
    uint32_t code = (uint32_t)cf_hex_(at, at + 4);
    at += 4;
    if (code >= 0xD800 && code < 0xE000) {
      uint32_t low = at[0] == '\\' && at[1] == 'u' ? (uint32_t)cf_hex_(at + 2, at + 6) : 0;
      if (code < 0xDC00 && low >= 0xDC00 && low < 0xE000) {
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        at += 6;
      } else {
        code = 0xFFFD; /* half a pair, which no host writes */
      }
    }
    if (code < 0x80) {
      *out++ = (char)code;
    } else if (code < 0x800) {
      *out++ = (char)(0xC0 | code >> 6);
      *out++ = (char)(0x80 | (code & 63));
    } else if (code < 0x10000) {
      *out++ = (char)(0xE0 | code >> 12);
      *out++ = (char)(0x80 | (code >> 6 & 63));
      *out++ = (char)(0x80 | (code & 63));
    } else {
      *out++ = (char)(0xF0 | code >> 18);
      *out++ = (char)(0x80 | (code >> 12 & 63));
      *out++ = (char)(0x80 | (code >> 6 & 63));
      *out++ = (char)(0x80 | (code & 63));
    }
  }
  return (cf_text){to, (size_t)(out - to)};
}

/* The text that a value is, good as long as the value; with escapes in it, for the step (in `begin`: the run). False if it is none. */
CF_API bool cf_as_text(cf_json value, cf_text *text);

static cf_arena_ *cf_text_arena_ = &cf_step_arena_;

CF_API bool cf_as_text(cf_json value, cf_text *text) {
  if (!value.len || *value.start != '"') return false;
  for (size_t i = 1; i < value.len; i++) {
    if (value.start[i] == '"') {
      *text = (cf_text){value.start + 1, i - 1};
      return true;
    }
    if (value.start[i] == '\\') break;
  }
  *text = cf_decode_(value.start, cf_arena_take_(cf_text_arena_, value.len));
  return true;
}

/* The whole number that a value is, from 0 to 2^64-1, written without fraction and exponent. False if it is none. */
CF_API bool cf_as_u64(cf_json value, uint64_t *number) {
  uint64_t sum = 0;
  if (!value.len) return false;
  for (size_t i = 0; i < value.len; i++) {
    unsigned digit = (unsigned char)value.start[i] - '0';
    if (digit > 9 || sum > UINT64_MAX / 10 || sum * 10 > UINT64_MAX - digit) return false;
    sum = sum * 10 + digit;
  }
  *number = sum;
  return true;
}

/* The same, from 0 to 2^32-1: handles, pages, counts. */
CF_API bool cf_as_u32(cf_json value, uint32_t *number) {
  uint64_t wide;
  if (!cf_as_u64(value, &wide) || wide > UINT32_MAX) return false;
  *number = (uint32_t)wide;
  return true;
}

/* Any number, as the nearest double. False if it is none. */
CF_API bool cf_as_number(cf_json value, double *number) {
  if (!value.len || (*value.start != '-' && (*value.start < '0' || *value.start > '9'))) return false;
  const char *at = value.start, *end = at + value.len;
  bool negative = *at == '-', in_fraction = false;
  uint64_t digits = 0;
  int exponent = 0;
  for (at += negative; at < end && *at != 'e' && *at != 'E'; at++) {
    if (*at == '.') {
      in_fraction = true;
    } else if (digits < 1000000000000000000ull) {
      digits = digits * 10 + (uint64_t)(*at - '0');
      exponent -= in_fraction;
    } else {
      exponent += !in_fraction;
    }
  }
  if (at < end) {
    bool minus = at[1] == '-';
    int written = 0;
    for (at += at[1] == '-' || at[1] == '+' ? 2 : 1; at < end; at++)
      if (written < 100000) written = written * 10 + (*at - '0');
    exponent += minus ? -written : written;
  }
  *number = cf_decimal_(digits, exponent);
  if (negative) *number = -*number;
  return true;
}

CF_API bool cf_as_bool(cf_json value, bool *truth) {
  if (!value.len || (*value.start != 't' && *value.start != 'f')) return false;
  *truth = *value.start == 't';
  return true;
}

CF_API bool cf_is_null(cf_json value) { return value.len && *value.start == 'n'; }
CF_API bool cf_is_object(cf_json value) { return value.len && *value.start == '{'; }
CF_API bool cf_is_list(cf_json value) { return value.len && *value.start == '['; }

/* A walk over the fields of an object, or the items of a list: cf_walk walk = cf_walk_of(value); while (cf_step_to(&walk)) … */
typedef struct {
  const char *at, *end;
  bool object;
  cf_json key; /* a string, as it is written; for an object */
  cf_json value;
} cf_walk;

CF_API cf_walk cf_walk_of(cf_json value) {
  cf_walk walk = {0};
  if (!cf_is_object(value) && !cf_is_list(value)) return walk;
  walk.at = value.start + 1;
  walk.end = value.start + value.len - 1;
  walk.object = *value.start == '{';
  return walk;
}

CF_API bool cf_step_to(cf_walk *walk) {
  const char *at = cf_space_(walk->at, walk->end);
  if (at == walk->end) return false;
  if (*at == ',') at = cf_space_(at + 1, walk->end);
  if (walk->object) {
    const char *behind = cf_skip_string_(at, walk->end);
    walk->key = (cf_json){at, (size_t)(behind - at)};
    at = cf_space_(cf_space_(behind, walk->end) + 1, walk->end);
  }
  const char *behind = cf_skip_(at, walk->end);
  walk->value = (cf_json){at, (size_t)(behind - at)};
  walk->at = behind;
  return true;
}

/* Whether a key is this name, which holds ASCII only. A key may be written with escapes. */
CF_API bool cf_key_is(cf_json key, const char *name) {
  const char *at = key.start + 1;
  for (; *name; name++) {
    uint32_t code = (unsigned char)*at++;
    if (code == '"') return false;
    if (code == '\\') {
      code = (unsigned char)*at++;
      if (code == 'u') {
        code = (uint32_t)cf_hex_(at, at + 4);
        at += 4;
      }
    }
    if (code != (unsigned char)*name) return false;
  }
  return *at == '"';
}

/* A field of an object. False if there is none. */
CF_API bool cf_get(cf_json object, const char *name, cf_json *value) {
  if (!cf_is_object(object)) return false;
  cf_walk walk = cf_walk_of(object);
  while (cf_step_to(&walk)) {
    if (cf_key_is(walk.key, name)) {
      *value = walk.value;
      return true;
    }
  }
  return false;
}

/* A field of an object that has one type. False if it is missing or has another. */
CF_API bool cf_get_text(cf_json object, const char *name, cf_text *text) {
  cf_json value;
  return cf_get(object, name, &value) && cf_as_text(value, text);
}
CF_API bool cf_get_u64(cf_json object, const char *name, uint64_t *number) {
  cf_json value;
  return cf_get(object, name, &value) && cf_as_u64(value, number);
}
CF_API bool cf_get_u32(cf_json object, const char *name, uint32_t *number) {
  cf_json value;
  return cf_get(object, name, &value) && cf_as_u32(value, number);
}
CF_API bool cf_get_number(cf_json object, const char *name, double *number) {
  cf_json value;
  return cf_get(object, name, &value) && cf_as_number(value, number);
}
CF_API bool cf_get_bool(cf_json object, const char *name, bool *truth) {
  cf_json value;
  return cf_get(object, name, &value) && cf_as_bool(value, truth);
}
CF_API bool cf_get_list(cf_json object, const char *name, cf_json *list) {
  return cf_get(object, name, list) && cf_is_list(*list);
}

/* How many items a list has. */
CF_API size_t cf_count(cf_json list) {
  size_t count = 0;
  cf_walk walk = cf_walk_of(list);
  while (cf_step_to(&walk)) count++;
  return count;
}

/* ---- Commands ---- */

static cf_writer cf_out_;
static cf_command cf_last_command_;
static const char *cf_input_type_ = "";

CF_API const char *cf_command_name_(cf_command_kind kind) {
  static const char *const names[] = {"nothing", "infer", "embed", "open", "slice", "slice_bytes", "page_text", "page_text_opt",
                                      "document_text", "page_image", "image_op", "emit", "done", "fail"};
  return names[kind];
}

CF_API cf_text cf_text_of_(const char *name) {
  size_t len = 0;
  while (name[len]) len++;
  return (cf_text){name, len};
}

CF_API cf_writer *cf_begin_(cf_command_kind kind) {
  cf_clear(&cf_out_);
  cf_object_begin(&cf_out_);
  cf_key(&cf_out_, "cmd");
  cf_put_text(&cf_out_, cf_text_of_(cf_command_name_(kind)));
  return &cf_out_;
}

CF_API cf_command cf_end_(cf_command_kind kind) {
  cf_object_end(&cf_out_);
  return (cf_command){kind};
}

CF_API void cf_field_(const char *name, uint64_t number) {
  cf_key(&cf_out_, name);
  cf_put_u64(&cf_out_, number);
}

/* What to ask the model. Leave out what you do not need. */
typedef struct {
  cf_text prompt;
  uint32_t max_tokens;
  const uint32_t *images; /* handles, in the order in which the model sees them */
  size_t image_count;
  bool has_temperature;
  double temperature; /* from 0, the likeliest token each time, to 2 */
  bool has_seed;
  uint32_t seed; /* makes a choice above temperature 0 repeatable */
  const cf_text *stop; /* the reply ends before the first of these */
  size_t stop_count;
  cf_json schema; /* the reply is JSON that fits this JSON Schema */
} cf_inference;

/* Asks the model. Answered by CF_INFER_DONE. */
CF_API cf_command cf_infer(cf_inference asked) {
  cf_writer *w = cf_begin_(CF_INFER);
  cf_key(w, "prompt");
  cf_put_text(w, asked.prompt);
  cf_field_("max_tokens", asked.max_tokens);
  if (asked.image_count) {
    cf_key(w, "images");
    cf_list_begin(w);
    for (size_t i = 0; i < asked.image_count; i++) cf_put_u64(w, asked.images[i]);
    cf_list_end(w);
  }
  if (asked.has_temperature || asked.has_seed || asked.stop_count || asked.schema.len) {
    cf_key(w, "options");
    cf_object_begin(w);
    if (asked.has_temperature) {
      cf_key(w, "temperature");
      cf_put_number(w, asked.temperature);
    }
    if (asked.has_seed) cf_field_("seed", asked.seed);
    if (asked.stop_count) {
      cf_key(w, "stop");
      cf_list_begin(w);
      for (size_t i = 0; i < asked.stop_count; i++) cf_put_text(w, asked.stop[i]);
      cf_list_end(w);
    }
    if (asked.schema.len) {
      cf_key(w, "schema");
      cf_put_json(w, asked.schema);
    }
    cf_object_end(w);
  }
  return cf_end_(CF_INFER);
}

/* Turns texts into vectors. Answered by CF_EMBEDDED. */
CF_API cf_command cf_embed(const cf_text *texts, size_t count) {
  cf_writer *w = cf_begin_(CF_EMBED);
  cf_key(w, "texts");
  cf_list_begin(w);
  for (size_t i = 0; i < count; i++) cf_put_text(w, texts[i]);
  cf_list_end(w);
  return cf_end_(CF_EMBED);
}

/* Opens a file. Answered by CF_OPENED. */
CF_API cf_command cf_open(cf_text path) {
  cf_writer *w = cf_begin_(CF_OPEN);
  cf_key(w, "path");
  cf_put_text(w, path);
  return cf_end_(CF_OPEN);
}

CF_API cf_command cf_read_(cf_command_kind kind, uint32_t handle, uint64_t offset, uint64_t len) {
  cf_begin_(kind);
  cf_field_("handle", handle);
  cf_field_("offset", offset);
  cf_field_("len", len);
  return cf_end_(kind);
}

/* Asks for the whole characters within `len` bytes of a text. Answered by CF_SLICED. */
CF_API cf_command cf_slice(uint32_t handle, uint64_t offset, uint64_t len) { return cf_read_(CF_SLICE, handle, offset, len); }

/* Asks for bytes of anything that is open. Answered by CF_SLICED_BYTES. */
CF_API cf_command cf_slice_bytes(uint32_t handle, uint64_t offset, uint64_t len) { return cf_read_(CF_SLICE_BYTES, handle, offset, len); }

CF_API cf_command cf_page_(cf_command_kind kind, uint32_t handle, uint32_t page) {
  cf_begin_(kind);
  cf_field_("handle", handle);
  cf_field_("page", page);
  return cf_end_(kind);
}

/* Asks for the text of a page, counted from zero. Answered by CF_PAGE_TEXTED. */
CF_API cf_command cf_page_text(uint32_t handle, uint32_t page) { return cf_page_(CF_PAGE_TEXT, handle, page); }

/* Asks for the text of a page, or the reason why there is none: `cf_page_text` would end the job. CF_PAGE_TEXT_ATTEMPTED. */
CF_API cf_command cf_page_text_opt(uint32_t handle, uint32_t page) { return cf_page_(CF_PAGE_TEXT_OPT, handle, page); }

/* Asks for the text of all pages in one. Answered by CF_PAGE_TEXTED. */
CF_API cf_command cf_document_text(uint32_t handle) {
  cf_begin_(CF_DOCUMENT_TEXT);
  cf_field_("handle", handle);
  return cf_end_(CF_DOCUMENT_TEXT);
}

/* Asks for a picture of a page, counted from zero. Answered by CF_PAGE_IMAGED. */
CF_API cf_command cf_page_image(uint32_t handle, uint32_t page) { return cf_page_(CF_PAGE_IMAGE, handle, page); }

CF_API cf_writer *cf_begin_op_(uint32_t handle, cf_text op) {
  cf_writer *w = cf_begin_(CF_IMAGE_OP);
  cf_field_("handle", handle);
  cf_key(w, "op");
  cf_object_begin(w);
  cf_key(w, "op");
  cf_put_text(w, op);
  return w;
}

/* Asks for a copy of an image that fits into a box: proportions are kept, and nothing is enlarged. Answered by CF_PAGE_IMAGED. */
CF_API cf_command cf_resize(uint32_t handle, uint32_t max_width, uint32_t max_height) {
  cf_writer *w = cf_begin_op_(handle, CF_TEXT("resize"));
  cf_field_("max_width", max_width);
  cf_field_("max_height", max_height);
  cf_object_end(w);
  return cf_end_(CF_IMAGE_OP);
}

/* Asks for a part of an image, which must lie wholly inside, in pixels from the upper left corner. Answered by CF_PAGE_IMAGED. */
CF_API cf_command cf_crop(uint32_t handle, uint32_t x, uint32_t y, uint32_t width, uint32_t height) {
  cf_writer *w = cf_begin_op_(handle, CF_TEXT("crop"));
  cf_field_("x", x);
  cf_field_("y", y);
  cf_field_("width", width);
  cf_field_("height", height);
  cf_object_end(w);
  return cf_end_(CF_IMAGE_OP);
}

/* Asks for one frame of an animation, counted from zero: all else sees the first. Answered by CF_PAGE_IMAGED. */
CF_API cf_command cf_frame(uint32_t handle, uint32_t index) {
  cf_writer *w = cf_begin_op_(handle, CF_TEXT("frame"));
  cf_field_("index", index);
  cf_object_end(w);
  return cf_end_(CF_IMAGE_OP);
}

/* Shows progress, any JSON, to whoever watches. Answered by CF_EMITTED. */
CF_API cf_command cf_emit(cf_json progress) {
  cf_writer *w = cf_begin_(CF_EMIT);
  cf_key(w, "progress");
  cf_put_json(w, progress);
  return cf_end_(CF_EMIT);
}

/* Ends the block with its result, any JSON of the type that the signature promises. */
CF_API cf_command cf_done(cf_json result) {
  cf_writer *w = cf_begin_(CF_DONE);
  cf_key(w, "result");
  cf_put_json(w, result);
  return cf_end_(CF_DONE);
}

/* Ends the block: `code` for programs, `message` for people (what happened, and what to do). */
CF_API cf_command cf_fail(cf_text code, cf_text message) {
  cf_writer *w = cf_begin_(CF_FAIL);
  cf_key(w, "code");
  cf_put_text(w, code);
  cf_key(w, "message");
  cf_put_text(w, message);
  return cf_end_(CF_FAIL);
}

/* Ends the block because its input is not what its signature says. */
CF_API cf_command cf_bad_input(void) {
  return cf_fail(CF_TEXT("bad_input"), CF_CONCAT(CF_TEXT("the input is not "), cf_text_of_(cf_input_type_)));
}

CF_API const char *cf_event_name_(cf_event_kind kind) {
  static const char *const names[] = {"infer_done",  "embedded",            "opened",      "sliced", "sliced_bytes",
                                      "page_texted", "page_text_attempted", "page_imaged", "emitted"};
  return names[kind];
}

/* Ends the block because an event makes no sense here. For the `default` of a block's `switch`. */
CF_API cf_command cf_unexpected(const cf_event *event) {
  return cf_fail(CF_TEXT("bad_event"),
                 CF_CONCAT(CF_TEXT("the host answered \""), cf_text_of_(cf_command_name_(cf_last_command_.kind)),
                           CF_TEXT("\" with \""), cf_text_of_(cf_event_name_(event->kind)), CF_TEXT("\"")));
}

/* Whether reading on at `next_offset` can reach the end. A block that follows offsets which stand still would ask for ever. */
CF_API bool cf_advances(const cf_event *window, uint64_t offset, uint64_t len) {
  return window->next_offset > offset && window->next_offset <= len;
}

/* Ends the block because a window does not lead on from `offset`. */
CF_API cf_command cf_stuck(const cf_event *window, uint64_t offset, uint64_t len) {
  return cf_fail(CF_TEXT("bad_event"), CF_CONCAT(CF_TEXT("the host answered a request at byte "), cf_number_text(offset), CF_TEXT(" of "),
                                                 cf_number_text(len), CF_TEXT(" with next_offset "),
                                                 cf_number_text(window->next_offset), CF_TEXT(", which leads nowhere")));
}

/* ---- Reading events ---- */

typedef struct {
  cf_json event, text, tokens_out, finish_reason, vectors, handle, len, kind, next_offset, bytes_base64, images, coverage, error,
          frames;
} cf_fields_;

/* An event's string, decoded where it lies: the message is the block's until it returns. */
CF_API bool cf_own_text_(cf_json value, cf_text *text) {
  if (!value.len || *value.start != '"') return false;
  for (size_t i = 1; i < value.len - 1; i++) {
    if (value.start[i] == '\\') {
      *text = cf_decode_(value.start, (char *)(uintptr_t)value.start);
      return true;
    }
  }
  *text = (cf_text){value.start + 1, value.len - 2};
  return true;
}

CF_API bool cf_own_text_or_null_(cf_json value, cf_text *text) {
  *text = (cf_text){0};
  return !value.len || cf_is_null(value) || cf_own_text_(value, text);
}

CF_API bool cf_read_kind_(cf_json kind, cf_event *event) {
  cf_json tag, value;
  event->media = CF_KIND_TEXT;
  if (!kind.len) return true;
  if (!cf_get(kind, "kind", &tag) || *tag.start != '"') return false;
  if (cf_key_is(tag, "text")) return true;
  if (cf_key_is(tag, "image")) {
    event->media = CF_KIND_IMAGE;
    return cf_get(kind, "format", &value) && cf_own_text_(value, &event->format);
  }
  if (cf_key_is(tag, "document")) {
    event->media = CF_KIND_DOCUMENT;
    return cf_get_u32(kind, "pages", &event->pages) && cf_get_bool(kind, "has_text_layer", &event->has_text_layer);
  }
  event->media = CF_KIND_BINARY;
  return true;
}

CF_API bool cf_read_vectors_(cf_json list, cf_event *event) {
  if (!cf_is_list(list)) return false;
  event->vector_count = cf_count(list);
  cf_vector *vectors = cf_step_memory(event->vector_count * sizeof *vectors);
  event->vectors = vectors;
  cf_walk walk = cf_walk_of(list);
  for (; cf_step_to(&walk); vectors++) {
    if (!cf_is_list(walk.value)) return false;
    size_t len = 0, most = 1;
    for (size_t i = 0; i < walk.value.len; i++) most += walk.value.start[i] == ',';
    double *values = cf_step_memory(most * sizeof *values);
    cf_walk numbers = cf_walk_of(walk.value);
    while (cf_step_to(&numbers))
      if (len == most || !cf_as_number(numbers.value, &values[len++])) return false;
    *vectors = (cf_vector){values, len};
  }
  return true;
}

CF_API bool cf_decode_base64_(cf_json value, cf_text *bytes) {
  cf_text encoded;
  if (!cf_own_text_(value, &encoded) || encoded.len % 4) return false;
  unsigned char *out = (unsigned char *)(uintptr_t)encoded.bytes, *start = out;
  for (size_t i = 0; i < encoded.len; i += 4) {
    uint32_t bits = 0;
    int padding = 0;
    for (size_t j = 0; j < 4; j++) {
      char c = encoded.bytes[i + j];
      int six = c >= 'A' && c <= 'Z' ? c - 'A' : c >= 'a' && c <= 'z' ? c - 'a' + 26 : c >= '0' && c <= '9' ? c - '0' + 52
                : c == '+' ? 62 : c == '/' ? 63 : -1;
      if (c == '=' && i + 4 == encoded.len && j >= 2) padding++;
      else if (six < 0 || padding) return false;
      bits = bits << 6 | (uint32_t)(six < 0 ? 0 : six);
    }
    *out++ = (unsigned char)(bits >> 16);
    if (padding < 2) *out++ = (unsigned char)(bits >> 8);
    if (padding < 1) *out++ = (unsigned char)bits;
  }
  *bytes = (cf_text){(const char *)start, (size_t)(out - start)};
  return true;
}

CF_API bool cf_read_event_(cf_json message, cf_event *event) {
  cf_fields_ f = {0};
  const struct {
    const char *name;
    cf_json *place;
  } known[] = {{"event", &f.event},   {"text", &f.text},     {"tokens_out", &f.tokens_out},   {"finish_reason", &f.finish_reason},
               {"vectors", &f.vectors}, {"handle", &f.handle}, {"len", &f.len},                 {"kind", &f.kind},
               {"next_offset", &f.next_offset}, {"bytes_base64", &f.bytes_base64}, {"images", &f.images}, {"coverage", &f.coverage},
               {"error", &f.error},     {"frames", &f.frames}};
  if (!cf_is_object(message)) return false;
  cf_walk walk = cf_walk_of(message);
  while (cf_step_to(&walk)) {
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
      if (cf_key_is(walk.key, known[i].name)) {
        *known[i].place = walk.value;
        break;
      }
    }
  }
  *event = (cf_event){0};
  if (!f.event.len || *f.event.start != '"') return false;
  for (int kind = CF_INFER_DONE;; kind++) {
    if (kind > CF_EMITTED) return false;
    if (cf_key_is(f.event, cf_event_name_((cf_event_kind)kind))) {
      event->kind = (cf_event_kind)kind;
      break;
    }
  }
  switch (event->kind) {
    case CF_INFER_DONE:
      return cf_own_text_(f.text, &event->text) && cf_as_u32(f.tokens_out, &event->tokens_out) &&
             cf_own_text_or_null_(f.finish_reason, &event->finish_reason);
    case CF_EMBEDDED: return cf_read_vectors_(f.vectors, event);
    case CF_OPENED:
      return cf_as_u32(f.handle, &event->handle) && cf_as_u64(f.len, &event->len) && cf_read_kind_(f.kind, event);
    case CF_SLICED: return cf_own_text_(f.text, &event->text) && cf_as_u64(f.next_offset, &event->next_offset);
    case CF_SLICED_BYTES: return cf_decode_base64_(f.bytes_base64, &event->text) && cf_as_u64(f.next_offset, &event->next_offset);
    case CF_PAGE_TEXTED:
      event->has_images = f.images.len && !cf_is_null(f.images);
      event->has_coverage = f.coverage.len && !cf_is_null(f.coverage);
      return cf_own_text_(f.text, &event->text) && (!event->has_images || cf_as_u32(f.images, &event->images)) &&
             (!event->has_coverage || cf_as_number(f.coverage, &event->coverage));
    case CF_PAGE_TEXT_ATTEMPTED:
      return cf_own_text_or_null_(f.text, &event->text) && cf_own_text_or_null_(f.error, &event->reason) &&
             !event->text.bytes != !event->reason.bytes;
    case CF_PAGE_IMAGED:
      event->has_frames = f.frames.len && !cf_is_null(f.frames);
      return cf_as_u32(f.handle, &event->handle) && cf_as_u64(f.len, &event->len) &&
             (!f.kind.len || cf_read_kind_(f.kind, event)) && (!event->has_frames || cf_as_u32(f.frames, &event->frames));
    case CF_EMITTED: return true;
  }
  return false;
}

CF_API bool cf_answers_(cf_event_kind event, cf_command_kind command) {
  switch (command) {
    case CF_INFER: return event == CF_INFER_DONE;
    case CF_EMBED: return event == CF_EMBEDDED;
    case CF_OPEN: return event == CF_OPENED;
    case CF_SLICE: return event == CF_SLICED;
    case CF_SLICE_BYTES: return event == CF_SLICED_BYTES;
    case CF_PAGE_TEXT: case CF_DOCUMENT_TEXT: return event == CF_PAGE_TEXTED;
    case CF_PAGE_TEXT_OPT: return event == CF_PAGE_TEXT_ATTEMPTED;
    case CF_PAGE_IMAGE: case CF_IMAGE_OP: return event == CF_PAGE_IMAGED;
    case CF_EMIT: return event == CF_EMITTED;
    default: return false;
  }
}

/* ---- Exports ---- */

static struct {
  char *bytes;
  size_t len;
} cf_in_, cf_kept_in_;

static struct {
  const char *address;
  size_t len;
} cf_descriptor_;

CF_API const void *cf_describe_(cf_json payload) {
  cf_descriptor_.address = payload.start;
  cf_descriptor_.len = payload.len;
  return &cf_descriptor_;
}

CF_API const void *cf_answer_(cf_command command) {
  cf_last_command_ = command;
  return cf_describe_(cf_written(&cf_out_));
}

/* One buffer serves every message, because the host writes each straight before the call that reads it. */
CF_EXPORT("cf_alloc") void *cf_export_alloc_(size_t len) {
  if (len > cf_in_.len || !cf_in_.len) {
    size_t size = len < 4096 ? 4096 : len;
    cf_give(cf_in_.bytes, cf_in_.len);
    cf_in_.len = 0;
    if (!(cf_in_.bytes = cf_take(size))) return NULL;
    cf_in_.len = size;
  }
  return cf_in_.bytes;
}

CF_API const void *cf_init_(const char *input_type, cf_command (*begin)(cf_json), const char *message, size_t len) {
  cf_input_type_ = input_type;
  cf_arena_clear_(&cf_step_arena_);
  cf_arena_clear_(&cf_run_arena_);
  /* The input's texts lie where they came in, so no event may overwrite that buffer before the next run. */
  cf_give(cf_kept_in_.bytes, cf_kept_in_.len);
  cf_kept_in_ = cf_in_;
  cf_in_.bytes = NULL;
  cf_in_.len = 0;
  cf_json input = cf_whole_(message, len);
  cf_text_arena_ = &cf_run_arena_;
  const void *answer = cf_answer_(input.len ? begin(input) : cf_bad_input());
  cf_text_arena_ = &cf_step_arena_;
  return answer;
}

CF_API const void *cf_next_(cf_command (*next)(const cf_event *), const char *message, size_t len) {
  cf_event event;
  cf_arena_clear_(&cf_step_arena_);
  if (!cf_read_event_(cf_whole_(message, len), &event))
    return cf_answer_(cf_fail(CF_TEXT("bad_event"), CF_CONCAT(CF_TEXT("the host answered \""),
                                                             cf_text_of_(cf_command_name_(cf_last_command_.kind)),
                                                             CF_TEXT("\" with an event that this block cannot read"))));
  if (!cf_answers_(event.kind, cf_last_command_.kind)) return cf_answer_(cf_unexpected(&event));
  return cf_answer_(next(&event));
}

CF_API const void *cf_signature_(const char *input, const char *output) {
  cf_writer *w = &cf_out_;
  cf_clear(w);
  cf_object_begin(w);
  cf_key(w, "input");
  cf_put_text(w, cf_text_of_(input));
  cf_key(w, "output");
  cf_put_text(w, cf_text_of_(output));
  cf_object_end(w);
  return cf_describe_(cf_written(w));
}

/* Makes two functions a block: `begin` gets the input, `next` each event. The types are those of the contract's type language. */
#define CF_BLOCK(input_type, output_type, begin, next)                                       \
  CF_EXPORT("cf_init") const void *cf_export_init_(const char *message, size_t len) { \
    return cf_init_(input_type, begin, message, len);                                                  \
  }                                                                                          \
  CF_EXPORT("cf_step") const void *cf_export_step_(const char *message, size_t len) { \
    return cf_next_(next, message, len);                                                               \
  }                                                                                          \
  CF_EXPORT("cf_signature") const void *cf_export_signature_(void) {        \
    return cf_signature_(input_type, output_type);                                           \
  }

/* Lets a block see each piece of the model's reply: `bool on_token(cf_text piece)`, where true stops the model. The piece is the
   host's again when the function returns, so copy what must stay. */
#define CF_ON_TOKEN(on_token)                                                                \
  CF_EXPORT("cf_on_token") int32_t cf_export_on_token_(const char *piece, size_t len) { \
    return on_token((cf_text){piece, len}) ? 1 : 0;                                                      \
  }

#endif
