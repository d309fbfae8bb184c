// What the parts of the guest share.
#include <stdbool.h>
#include <stdint.h>

#include "py/obj.h"
#include "py/lexer.h"

// ---- buffers.c: memory outside of Python's heap, for what crosses the border

typedef struct {
    uint32_t ptr, len;
} descriptor_t;  // the contract's descriptor

typedef struct {
    char *data;
    size_t len, capacity;
} buffer_t;

bool buffer_reserve(buffer_t *buffer, size_t capacity);                     // false: no memory; the content is lost then
void buffer_add(buffer_t *buffer, const char *data, size_t len);            // raises MemoryError

// ---- json_in.c, json_out.c

typedef struct {
    const char *between, *after_key;
    bool ascii_only;
} json_style_t;

extern const json_style_t json_compact;
mp_obj_t json_read(char *text, size_t len);                                 // `text` is overwritten; raises ValueError
void json_write(buffer_t *out, mp_obj_t value, const json_style_t *style);  // raises TypeError, ValueError, MemoryError
void json_write_text(buffer_t *out, const char *text, size_t len);          // with its quotes

// ---- heap.c

void heap_init(void);
void heap_collect_if_due(void);                                             // only where no C frame holds a Python object

// ---- run.c

mp_obj_t prelude_name(qstr name);                                           // of the prelude, whatever the author redefines

// ---- failure.c

extern const char failure_internal[];
void failure_write(buffer_t *out, mp_obj_t exception);                      // a `fail` command; raises nothing

// ---- port.c

descriptor_t *log_take(void);                                               // what was printed since the last time
mp_lexer_t *embedded_lexer(const char *file_name);                          // NULL: there is no such module
