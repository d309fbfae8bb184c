// A Python exception as the contract's `fail` command.
#include <string.h>

#include "py/objtype.h"
#include "py/runtime.h"
#include "guest.h"

#define MESSAGE_BYTES (16 * 1024)  // an exception may hold a whole file, and a person reads this
#define FIRST_FRAMES 3
#define LAST_FRAMES 7
#define FIELDS_OF_FRAME 3          // file, line, function

const char failure_internal[] =
    "{\"cmd\":\"fail\",\"code\":\"guest_error\",\"message\":\"the block raised an exception that cannot be shown\"}";

// A text of limited length, for a message.
typedef struct {
    char text[MESSAGE_BYTES + 8];
    size_t len;
    bool full;
} message_t;

static void add_to_message(void *data, const char *text, size_t len) {
    message_t *message = data;
    if (message->full) {
        return;
    }
    if (len > MESSAGE_BYTES - message->len) {
        len = MESSAGE_BYTES - message->len;
        while (len > 0 && (text[len] & 0xC0) == 0x80) {
            len--;
        }
        message->full = true;
    }
    memcpy(message->text + message->len, text, len);
    message->len += len;
    if (message->full) {
        memcpy(message->text + message->len, "…", strlen("…"));
        message->len += strlen("…");
    }
}

static bool is_a(mp_obj_t exception, const mp_obj_type_t *type) {
    return mp_obj_is_subclass_fast(MP_OBJ_FROM_PTR(mp_obj_get_type(exception)), MP_OBJ_FROM_PTR(type));
}

static void write_command(buffer_t *out, const char *code, size_t code_len, const char *message, size_t message_len) {
    static const char head[] = "{\"cmd\":\"fail\",\"code\":", middle[] = ",\"message\":";
    buffer_add(out, head, sizeof head - 1);
    json_write_text(out, code, code_len);
    buffer_add(out, middle, sizeof middle - 1);
    json_write_text(out, message, message_len);
    buffer_add(out, "}", 1);
}

static qstr prelude_file(void) {
    return qstr_from_str("prelude.py");
}

// The frames as Python shows them, the newest last, but for those of the prelude: the author's own line is what counts.
static void print_frames(const mp_print_t *print, mp_obj_t exception) {
    size_t len, *frames;
    mp_obj_exception_get_traceback(exception, &len, &frames);
    size_t count = 0;
    for (size_t i = 0; i < len; i += FIELDS_OF_FRAME) {
        count += frames[i] != prelude_file();
    }
    if (count > 0) {
        mp_print_str(print, "Traceback (most recent call last):\n");
    }
    size_t shown = 0;
    for (size_t i = len; i > 0; i -= FIELDS_OF_FRAME) {
        size_t *frame = &frames[i - FIELDS_OF_FRAME];
        if (frame[0] == prelude_file()) {
            continue;
        }
        if (count > FIRST_FRAMES + LAST_FRAMES && shown == FIRST_FRAMES) {
            mp_printf(print, "  … %u more calls\n", (unsigned)(count - FIRST_FRAMES - LAST_FRAMES));
        }
        if (shown < FIRST_FRAMES || shown >= count - MIN(count, LAST_FRAMES)) {
            mp_printf(print, "  File \"%q\", line %u", frame[0], (unsigned)frame[1]);
            if (frame[2] != MP_QSTRnull) {
                mp_printf(print, ", in %q", frame[2]);
            }
            mp_print_str(print, "\n");
        }
        shown++;
    }
}

static void print_exception(const mp_print_t *print, mp_obj_t exception) {
    print_frames(print, exception);
    mp_obj_print_helper(print, exception, PRINT_EXC);
    if (is_a(exception, &mp_type_ImportError) || is_a(exception, &mp_type_SyntaxError)) {
        mp_print_str(print, "\nA Python block runs MicroPython in a sandbox: docs/python-blocks.md says what of Python it lacks.");
    }
    if (is_a(exception, &mp_type_MemoryError)) {
        mp_printf(print, "\nThe block's memory stands at %u bytes; it grows no further than the limit guest.memory.",
            (unsigned)(__builtin_wasm_memory_size(0) * 65536));
    }
}

// A block's own `fail(code, message)`: true when it was that.
static bool write_own_failure(buffer_t *out, mp_obj_t exception) {
    if (!is_a(exception, MP_OBJ_TO_PTR(prelude_name(MP_QSTR_Fail)))) {
        return false;
    }
    size_t code_len, message_len;
    const char *code = mp_obj_str_get_data(mp_load_attr(exception, MP_QSTR_code), &code_len);
    const char *message = mp_obj_str_get_data(mp_load_attr(exception, MP_QSTR_message), &message_len);
    write_command(out, code, code_len, message, message_len);
    return true;
}

void failure_write(buffer_t *out, mp_obj_t exception) {
    static message_t message;  // static: the C stack is small, and Python's heap may be what is full
    nlr_buf_t nlr;
    if (nlr_push(&nlr) == 0) {
        out->len = 0;
        message.len = 0;
        message.full = false;
        if (!write_own_failure(out, exception)) {
            mp_print_t print = {&message, add_to_message};
            print_exception(&print, exception);
            const char *code = is_a(exception, &mp_type_MemoryError) ? "limit_exceeded" : "guest_error";
            write_command(out, code, strlen(code), message.text, message.len);
        }
        nlr_pop();
    } else {  // its own __str__ raises, or there is no memory even for this
        out->len = 0;
        if (nlr_push(&nlr) == 0) {
            buffer_add(out, failure_internal, sizeof failure_internal - 1);
            nlr_pop();
        }
    }
}
