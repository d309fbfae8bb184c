// The module `_block`: the guest's own JSON, for json.py. It is quicker than MicroPython's and joins escaped surrogate pairs.
#include <string.h>

#include "py/objstr.h"
#include "py/runtime.h"
#include "guest.h"

// loads(text or bytes)
static mp_obj_t block_loads(mp_obj_t text) {
    mp_buffer_info_t info;
    mp_get_buffer_raise(text, &info, MP_BUFFER_READ);
    char *copy = m_new(char, info.len + 1);  // it is overwritten while it is read
    memcpy(copy, info.buf, info.len);
    mp_obj_t value = json_read(copy, info.len);
    m_del(char, copy, info.len + 1);
    return value;
}
static MP_DEFINE_CONST_FUN_OBJ_1(block_loads_obj, block_loads);

// dumps(value, item separator, key separator, ASCII only)
static mp_obj_t block_dumps(size_t count, const mp_obj_t *args) {
    static buffer_t out;  // used again and again; not of Python's heap, so that nothing is lost when writing raises
    out.len = 0;
    json_style_t style = {mp_obj_str_get_str(args[1]), mp_obj_str_get_str(args[2]), mp_obj_is_true(args[3])};
    json_write(&out, args[0], &style);
    return mp_obj_new_str(out.data, out.len);
}
static MP_DEFINE_CONST_FUN_OBJ_VAR_BETWEEN(block_dumps_obj, 4, 4, block_dumps);

static const mp_rom_map_elem_t block_globals_table[] = {
    {MP_ROM_QSTR(MP_QSTR___name__), MP_ROM_QSTR(MP_QSTR__block)},
    {MP_ROM_QSTR(MP_QSTR_loads), MP_ROM_PTR(&block_loads_obj)},
    {MP_ROM_QSTR(MP_QSTR_dumps), MP_ROM_PTR(&block_dumps_obj)},
};
static MP_DEFINE_CONST_DICT(block_globals, block_globals_table);

const mp_obj_module_t block_module = {
    .base = {&mp_type_module},
    .globals = (mp_obj_dict_t *)&block_globals,
};
MP_REGISTER_MODULE(MP_QSTR__block, block_module);
