// A Python block's run: the contract's functions, over a generator of the author's.
#include <string.h>

#include "py/builtin.h"
#include "py/compile.h"
#include "py/cstack.h"
#include "py/gc.h"
#include "py/objgenerator.h"
#include "py/objstr.h"
#include "py/runtime.h"
#include "guest.h"

#define EXPORT(name) __attribute__((export_name(name), used, visibility("default")))
#define C_STACK_BYTES (64 * 1024)
#define PYTHON_STACK_BYTES (32 * 1024)  // about 1,000 calls deep
#define FIRST_ANSWER_BYTES (64 * 1024)  // room for any failure's message, when there is no other memory left

MP_REGISTER_ROOT_POINTER(mp_obj_t block_run);      // the generator that `run(input)` gave
MP_REGISTER_ROOT_POINTER(mp_obj_t block_held);     // an object that only C knows of, while Python runs
MP_REGISTER_ROOT_POINTER(mp_obj_t block_prelude);  // the prelude's own names, whatever the author redefines

static mp_obj_t python_stack[PYTHON_STACK_BYTES / sizeof(mp_obj_t)];
static buffer_t incoming, answer;
static descriptor_t answer_descriptor;
static bool failed_in_token;  // the answer holds the failure already; the next step gives it

typedef void (*work_t)(char *text, size_t len);  // fills `answer`

static descriptor_t *describe_answer(void) {
    answer_descriptor = (descriptor_t) {(uint32_t)answer.data, answer.len};
    return &answer_descriptor;
}

static void add(const char *text) {
    buffer_add(&answer, text, strlen(text));
}

// Do the work; an exception that comes out of it becomes a `fail` command. False if it does.
static bool guarded(work_t work, char *text, size_t len) {
    mp_cstack_init_with_sp_here(C_STACK_BYTES);
    answer.len = 0;
    nlr_buf_t nlr;
    bool is_well = nlr_push(&nlr) == 0;
    if (is_well) {
        work(text, len);
        nlr_pop();
    } else {
        MP_STATE_VM(block_run) = mp_const_none;
        MP_STATE_VM(block_held) = MP_OBJ_FROM_PTR(nlr.ret_val);
        cf_gc_now();  // whatever filled the memory is not needed any more
        failure_write(&answer, MP_STATE_VM(block_held));
        MP_STATE_VM(block_held) = mp_const_none;
    }
    heap_collect_if_due();
    return is_well;
}

static descriptor_t *answered(work_t work, char *text, size_t len) {
    guarded(work, text, len);
    return describe_answer();
}

// ---- names

static mp_obj_t find_name(mp_obj_t dict, qstr name) {  // MP_OBJ_NULL: there is none
    mp_map_elem_t *found = mp_map_lookup(mp_obj_dict_get_map(dict), MP_OBJ_NEW_QSTR(name), MP_MAP_LOOKUP);
    return found == NULL ? MP_OBJ_NULL : found->value;
}

static mp_obj_t find_global(qstr name) {
    return find_name(MP_OBJ_FROM_PTR(mp_globals_get()), name);
}

mp_obj_t prelude_name(qstr name) {
    return find_name(MP_STATE_VM(block_prelude), name);
}

static mp_obj_t call_prelude(qstr name, mp_obj_t argument) {
    return mp_call_function_1(prelude_name(name), argument);
}

// A message of the host's. What is no JSON ends the block by the prelude's function `on_failure`.
static mp_obj_t read_message(char *text, size_t len, qstr on_failure) {
    nlr_buf_t nlr;
    if (nlr_push(&nlr) == 0) {
        mp_obj_t value = json_read(text, len);
        nlr_pop();
        return value;
    }
    mp_obj_t problem = MP_OBJ_FROM_PTR(nlr.ret_val);
    if (mp_obj_exception_match(problem, MP_OBJ_FROM_PTR(&mp_type_ValueError))) {
        call_prelude(on_failure, mp_obj_exception_get_value(problem));
    }
    nlr_raise(problem);
}

// ---- loading

// Before anything else: the interpreter and the prelude, whose public names every block starts with.
__attribute__((constructor)) static void start_interpreter(void) {
    mp_cstack_init_with_sp_here(C_STACK_BYTES);
    mp_pystack_init(python_stack, python_stack + MP_ARRAY_SIZE(python_stack));
    heap_init();
    mp_init();
    nlr_buf_t nlr;
    if (!buffer_reserve(&answer, FIRST_ANSWER_BYTES) || nlr_push(&nlr) != 0) {
        __builtin_trap();  // the prelude is ours and works
    }
    mp_obj_t prelude = mp_obj_new_dict(0);
    MP_STATE_VM(block_prelude) = prelude;
    mp_obj_dict_store(prelude, MP_OBJ_NEW_QSTR(MP_QSTR___name__), MP_OBJ_NEW_QSTR(MP_QSTR_prelude));
    mp_parse_compile_execute(embedded_lexer("prelude.py"), MP_PARSE_FILE_INPUT, MP_OBJ_TO_PTR(prelude), MP_OBJ_TO_PTR(prelude));
    mp_map_t *names = mp_obj_dict_get_map(prelude);
    for (size_t i = 0; i < names->alloc; i++) {
        if (mp_map_slot_is_filled(names, i) && *mp_obj_str_get_str(names->table[i].key) != '_') {
            mp_store_global(mp_obj_str_get_qstr(names->table[i].key), names->table[i].value);
        }
    }
    nlr_pop();
    cf_gc_now();
}

// `text` is the file's name, a NUL and its source.
static void load(char *text, size_t len) {
    size_t name_len = strlen(text);
    const char *source = text + name_len + 1;
    size_t source_len = len - name_len - 1;
    if (source_len >= 3 && memcmp(source, "\xEF\xBB\xBF", 3) == 0) {  // the mark that some editors put before UTF-8
        source += 3;
        source_len -= 3;
    }
    mp_lexer_t *lexer = mp_lexer_new_from_str_len(qstr_from_strn(text, name_len), source, source_len, 0);
    mp_parse_compile_execute(lexer, MP_PARSE_FILE_INPUT, mp_globals_get(), mp_globals_get());
    mp_obj_t run = find_global(MP_QSTR_run);
    if (run == MP_OBJ_NULL || !mp_obj_is_callable(run)) {
        mp_raise_msg(&mp_type_NameError, MP_ERROR_TEXT("a Python block defines a function run(input), and this file has none"));
    }
    mp_obj_t on_token = find_global(MP_QSTR_on_token);
    if (on_token != MP_OBJ_NULL && !mp_obj_is_callable(on_token)) {
        mp_raise_TypeError(MP_ERROR_TEXT("on_token is a function: def on_token(token)"));
    }
    mp_obj_t signature = find_global(MP_QSTR_SIGNATURE);
    if (signature != MP_OBJ_NULL) {
        call_prelude(MP_QSTR__signature, signature);
    }
    cf_gc_pending = true;  // what compiling left behind
    add(on_token == MP_OBJ_NULL ? "{\"on_token\":false}" : "{\"on_token\":true}");
}

// ---- stepping

// Write the command that a yielded value stands for. Gives the exception when it stands for none, MP_OBJ_NULL otherwise.
static mp_obj_t write_yielded(mp_obj_t value) {
    nlr_buf_t nlr;
    if (nlr_push(&nlr) != 0) {
        answer.len = 0;
        return MP_OBJ_FROM_PTR(nlr.ret_val);
    }
    json_write(&answer, call_prelude(MP_QSTR__command, value), &json_compact);
    nlr_pop();
    return MP_OBJ_NULL;
}

static void write_done(mp_obj_t result) {
    nlr_buf_t nlr;
    if (nlr_push(&nlr) != 0) {  // the generator is over, so no line of the author's can be shown
        mp_obj_t problem = MP_OBJ_FROM_PTR(nlr.ret_val);
        if (mp_obj_exception_match(problem, MP_OBJ_FROM_PTR(&mp_type_MemoryError))) {
            nlr_raise(problem);
        }
        nlr_raise(mp_obj_new_exception_arg1(&mp_type_TypeError,
            mp_call_function_2(prelude_name(MP_QSTR__no_result), result, mp_obj_exception_get_value(problem))));
    }
    add("{\"cmd\":\"done\",\"result\":");
    json_write(&answer, result, &json_compact);
    add("}");
    nlr_pop();
}

// Let the author's generator go on with an event, up to its next command or its end.
static void resume(mp_obj_t event) {
    mp_obj_t thrown = MP_OBJ_NULL, given;
    for (;;) {
        switch (mp_resume(MP_STATE_VM(block_run), thrown == MP_OBJ_NULL ? event : MP_OBJ_NULL, thrown, &given)) {
            case MP_VM_RETURN_YIELD:
                thrown = write_yielded(given);
                if (thrown == MP_OBJ_NULL) {
                    return;
                }
                MP_STATE_VM(block_held) = thrown;  // raised where it was yielded, so that the author sees the line
                break;
            case MP_VM_RETURN_NORMAL:
                write_done(given == MP_OBJ_STOP_ITERATION || given == MP_OBJ_NULL ? mp_const_none : given);
                return;
            default:
                if (mp_obj_exception_match(given, MP_OBJ_FROM_PTR(&mp_type_StopIteration))) {
                    write_done(mp_obj_exception_get_value(given));
                    return;
                }
                nlr_raise(given);
        }
    }
}

static void init(char *text, size_t len) {
    failed_in_token = false;
    MP_STATE_VM(block_run) = mp_const_none;
    mp_obj_t run = mp_call_function_1(find_global(MP_QSTR_run), read_message(text, len, MP_QSTR__bad_input));
    if (!mp_obj_is_type(run, &mp_type_gen_instance)) {
        write_done(run);  // a plain function: it has nothing to ask
        return;
    }
    MP_STATE_VM(block_run) = run;
    resume(mp_const_none);
}

static void step(char *text, size_t len) {
    resume(call_prelude(MP_QSTR__event, read_message(text, len, MP_QSTR__bad_event)));
}

static void signature(char *text, size_t len) {
    mp_obj_t own = find_global(MP_QSTR_SIGNATURE);
    json_write(&answer, call_prelude(MP_QSTR__signature, own == MP_OBJ_NULL ? mp_obj_new_str(text, len) : own),
        &json_compact);
}

static bool token_stops;

// False and what else is false stops; None, which a function without `return` gives, goes on.
static void token(char *text, size_t len) {
    mp_obj_t verdict = mp_call_function_1(find_global(MP_QSTR_on_token), mp_obj_new_str_copy(&mp_type_str, (byte *)text, len));
    if (mp_obj_is_type(verdict, &mp_type_gen_instance)) {
        mp_raise_TypeError(MP_ERROR_TEXT("on_token cannot yield: it is a plain function that returns False to stop"));
    }
    token_stops = verdict != mp_const_none && !mp_obj_is_true(verdict);
}

// ---- exports

EXPORT("cf_alloc") char *cf_alloc(uint32_t len) {
    return buffer_reserve(&incoming, len + 1) ? incoming.data : NULL;
}

// Not of the contract, and not in a finished block: runs the author's file. Gives `{"on_token":BOOL}`, or a `fail` command.
EXPORT("cf_load") descriptor_t *cf_load(char *text, uint32_t len) {
    return answered(load, text, len);
}

EXPORT("cf_init") descriptor_t *cf_init(char *text, uint32_t len) {
    return answered(init, text, len);
}

EXPORT("cf_step") descriptor_t *cf_step(char *text, uint32_t len) {
    if (failed_in_token) {
        failed_in_token = false;
        return describe_answer();
    }
    return answered(step, text, len);
}

EXPORT("cf_signature") descriptor_t *cf_signature(void) {
    static char any[] = "json -> json";
    return answered(signature, any, sizeof any - 1);
}

EXPORT("cf_on_token") int32_t cf_on_token(char *text, uint32_t len) {
    if (!failed_in_token) {
        failed_in_token = !guarded(token, text, len);
    }
    return failed_in_token || token_stops;
}

EXPORT("cf_log") descriptor_t *cf_log(void) {
    return log_take();
}
