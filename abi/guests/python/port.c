// What MicroPython wants from the system that it runs on: here, a log, and modules that are part of the interpreter.
#include <string.h>

#include "py/builtin.h"
#include "py/lexer.h"
#include "py/mperrno.h"
#include "py/mphal.h"
#include "py/runtime.h"
#include "embedded.h"  // generated: the files of modules/ and prelude.py
#include "guest.h"

// ---- print

#define LOG_BYTES (64 * 1024)

static char log_text[LOG_BYTES + 64];
static size_t log_len, log_lost;
static descriptor_t log_descriptor;

mp_uint_t mp_hal_stdout_tx_strn(const char *text, size_t len) {
    size_t kept = log_lost > 0 ? 0 : MIN(len, LOG_BYTES - log_len);
    if (kept < len) {
        while (kept > 0 && (text[kept] & 0xC0) == 0x80) {
            kept--;  // a character is kept whole or not at all
        }
    }
    memcpy(log_text + log_len, text, kept);
    log_len += kept;
    log_lost += len - kept;
    return len;
}

void mp_hal_stdout_tx_strn_cooked(const char *text, size_t len) {
    mp_hal_stdout_tx_strn(text, len);
}

static void print_note(void *unused, const char *text, size_t len) {
    memcpy(log_text + log_len, text, len);
    log_len += len;
}

descriptor_t *log_take(void) {
    if (log_lost > 0) {
        mp_print_t print = {NULL, print_note};
        mp_printf(&print, "\n[%u more bytes were printed]\n", (unsigned)log_lost);
    }
    log_descriptor = (descriptor_t) {(uint32_t)log_text, log_len};
    log_len = log_lost = 0;
    return &log_descriptor;
}

// ---- import

static const embedded_t *find_embedded(const char *file_name) {
    for (size_t i = 0; i < MP_ARRAY_SIZE(embedded_files); i++) {
        if (strcmp(embedded_files[i].name, file_name) == 0) {
            return &embedded_files[i];
        }
    }
    return NULL;
}

mp_lexer_t *embedded_lexer(const char *file_name) {
    const embedded_t *file = find_embedded(file_name);
    return file == NULL ? NULL : mp_lexer_new_from_str_len(qstr_from_str(file_name), file->text, file->len, 0);
}

mp_import_stat_t mp_import_stat(const char *path) {
    return find_embedded(path) == NULL ? MP_IMPORT_STAT_NO_EXIST : MP_IMPORT_STAT_FILE;
}

mp_lexer_t *mp_lexer_new_from_file(qstr file_name) {
    mp_lexer_t *lexer = embedded_lexer(qstr_str(file_name));
    if (lexer == NULL) {
        mp_raise_OSError(MP_ENOENT);
    }
    return lexer;
}

// ---- what there is not

// `open` of the prelude takes this one's place; it is what `io.open` gives.
static mp_obj_t no_files(size_t arg_count, const mp_obj_t *args, mp_map_t *keywords) {
    mp_raise_OSError(MP_EPERM);
}
MP_DEFINE_CONST_FUN_OBJ_KW(mp_builtin_open_obj, 1, no_files);

mp_uint_t mp_hal_ticks_ms(void) {
    return 0;
}

void nlr_jump_fail(void *value) {
    __builtin_trap();
}
