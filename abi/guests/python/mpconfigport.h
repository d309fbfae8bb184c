// MicroPython as a guest that only computes: no files, no clock, no network, no imports, nothing that differs between two runs.
#include <alloca.h>
#include <stdint.h>
#include <stdlib.h>

typedef intptr_t mp_int_t;
typedef uintptr_t mp_uint_t;
typedef long mp_off_t;
#define MP_SSIZE_MAX                            (0x7fffffff)

#define MICROPY_CONFIG_ROM_LEVEL                (MICROPY_CONFIG_ROM_LEVEL_EXTRA_FEATURES)
#define MICROPY_ENABLE_COMPILER                 (1)
#define MICROPY_PERSISTENT_CODE_LOAD            (0)

// Memory: see heap.c for why a collection runs only at the hook below and between calls.
#define MICROPY_ENABLE_GC                       (1)
#define MICROPY_GC_SPLIT_HEAP                   (1)
#define MICROPY_GC_SPLIT_HEAP_AUTO              (1)
#define MICROPY_GC_ALLOC_THRESHOLD              (1)
#define MICROPY_ENABLE_PYSTACK                  (1)
#define MICROPY_STACKLESS                       (1)
#define MICROPY_STACK_CHECK                     (1)
extern _Bool cf_gc_pending;
void cf_gc_now(void);
// On a loop back-edge of the block's own frames there are two jump buffers: the interpreter loop's and that of the entry point.
#define MICROPY_VM_HOOK_LOOP if (cf_gc_pending && !MP_STATE_THREAD(nlr_top)->prev->prev) cf_gc_now();

// Exceptions
#define MICROPY_NLR_SETJMP                      (1)
#define MICROPY_ENABLE_SOURCE_LINE              (1)
#define MICROPY_ERROR_REPORTING                 (MICROPY_ERROR_REPORTING_DETAILED)
#define MICROPY_WARNINGS                        (0)
#define MICROPY_USE_INTERNAL_ERRNO              (1)

// Numbers
#define MICROPY_LONGINT_IMPL                    (MICROPY_LONGINT_IMPL_MPZ)
#define MICROPY_FLOAT_IMPL                      (MICROPY_FLOAT_IMPL_DOUBLE)
#define MICROPY_USE_INTERNAL_PRINTF             (0)
#define MICROPY_PY_MATH_CONSTANTS               (1)
#define MICROPY_PY_MATH_FACTORIAL               (1)
#define MICROPY_PY_MATH_ISCLOSE                 (1)
#define MICROPY_PY_MATH_SPECIAL_FUNCTIONS       (1)

// `import` finds the modules of modules/ (see port.c) and those in C.
#define MICROPY_ENABLE_EXTERNAL_IMPORT          (1)
#define MICROPY_MODULE_GETATTR                  (1)
#define MICROPY_PY_SYS_PATH                     (1)
#define MICROPY_PY_SYS_ARGV                     (0)
#define MICROPY_PY_SYS_EXIT                     (0)
#define MICROPY_PY_SYS_STDFILES                 (0)
#define MICROPY_PY_SYS_STDIO_BUFFER             (0)
#define MICROPY_PY_SYS_PS1_PS2                  (0)
#define MICROPY_PY_SYS_PLATFORM                 "wasm-block"

// What of the language and its modules is in
#define MICROPY_PY_DELATTR_SETATTR              (1)
#define MICROPY_PY_BUILTINS_RANGE_BINOP         (1)
#define MICROPY_PY_DESCRIPTORS                  (1)
#define MICROPY_PY_REVERSE_SPECIAL_METHODS      (1)
#define MICROPY_PY_ALL_SPECIAL_METHODS          (1)
#define MICROPY_PY_COLLECTIONS_NAMEDTUPLE__ASDICT (1)
#define MICROPY_PY_IO                           (1)
#define MICROPY_PY_IO_IOBASE                    (0)
#define MICROPY_PY_BINASCII                     (1)
#define MICROPY_PY_BINASCII_CRC32               (0)
#define MICROPY_PY_HASHLIB                      (1)
#define MICROPY_PY_HASHLIB_SHA256               (1)
#define MICROPY_PY_HASHLIB_SHA1                 (0)
#define MICROPY_PY_HASHLIB_MD5                  (0)
#define MICROPY_PY_JSON                         (1)
#define MICROPY_PY_RE                           (1)
#define MICROPY_PY_RE_SUB                       (1)
#define MICROPY_PY_RE_MATCH_GROUPS              (1)
#define MICROPY_PY_RE_MATCH_SPAN_START_END      (1)
#define MICROPY_PY_HEAPQ                        (1)
#define MICROPY_PY_RANDOM                       (1)
#define MICROPY_PY_RANDOM_EXTRA_FUNCS           (1)
#define MICROPY_PY_RANDOM_SEED_INIT_FUNC        (0x20260901)  // the same numbers in every run: a block can be replayed

// Exceptions by the names that ordinary Python has for some of their kinds
#define MICROPY_PORT_EXTRA_BUILTINS \
    { MP_ROM_QSTR(MP_QSTR_ModuleNotFoundError), MP_ROM_PTR(&mp_type_ImportError) }, \
    { MP_ROM_QSTR(MP_QSTR_RecursionError), MP_ROM_PTR(&mp_type_RuntimeError) }, \
    { MP_ROM_QSTR(MP_QSTR_UnicodeDecodeError), MP_ROM_PTR(&mp_type_UnicodeError) }, \
    { MP_ROM_QSTR(MP_QSTR_UnicodeEncodeError), MP_ROM_PTR(&mp_type_UnicodeError) },

// What of it is out
#define MICROPY_OPT_COMPUTED_GOTO               (0)  // wasm has no such jump
#define MICROPY_KBD_EXCEPTION                   (0)
#define MICROPY_ENABLE_SCHEDULER                (0)
#define MICROPY_HELPER_REPL                     (0)
#define MICROPY_PY_BUILTINS_HELP                (0)
#define MICROPY_PY_BUILTINS_INPUT               (0)
#define MICROPY_PY_BUILTINS_EXECFILE            (0)
#define MICROPY_PY_ASYNC_AWAIT                  (0)
#define MICROPY_PY_ASYNCIO                      (0)
#define MICROPY_PY_CRYPTOLIB                    (0)
#define MICROPY_PY_DEFLATE                      (0)
#define MICROPY_PY_FRAMEBUF                     (0)
#define MICROPY_PY_MACHINE                      (0)
#define MICROPY_PY_MICROPYTHON                  (0)
#define MICROPY_PY_OS                           (0)
#define MICROPY_PY_PLATFORM                     (0)
#define MICROPY_PY_SELECT                       (0)
#define MICROPY_PY_THREAD                       (0)
#define MICROPY_PY_TIME                         (0)
#define MICROPY_PY_UCTYPES                      (0)
#define MICROPY_VFS                             (0)

#define MICROPY_HW_BOARD_NAME                   "block"
#define MICROPY_HW_MCU_NAME                     "wasm32"
#define MICROPY_BANNER_MACHINE                  "block"
#define MICROPY_MPHALPORT_H                     "mphalport_block.h"
#define MP_STATE_PORT                           MP_STATE_VM
