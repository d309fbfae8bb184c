"""What is changed in MicroPython's source, each in one place: the old text and the new. `scripts/build-python-guest` reads it.

Where a value differed from Python's without an error, it is made the same or made an error.
"""

# ruff: noqa: E501  # the text of another project

PATCHES = {
    "py/gc.c": [
        # Upstream frees a piece of the heap whose only live object is its block 0: lists lose entries, dicts break. (1.25.0; 1.26.1 too.)
        (
            "if (last_used_block == 0 && prev_area != NULL) {",
            "if (last_used_block == 0 && ATB_GET_KIND(area, 0) == AT_FREE && prev_area != NULL) {",
        ),
        # A heap that cannot be doubled any more grows by less.
        (
            "    mp_state_mem_area_t *new_heap = MP_PLAT_ALLOC_HEAP(to_alloc);\n",
            "    mp_state_mem_area_t *new_heap;\n"
            "    while ((new_heap = MP_PLAT_ALLOC_HEAP(to_alloc)) == NULL && to_alloc > needed) {\n"
            "        to_alloc = MAX(needed, to_alloc / 2);\n"
            "    }\n",
        ),
    ],
    "py/objstr.c": [
        ('#include "py/objstr.h"\n', '#include "py/objstr.h"\n#include "text.h"\n'),
        # Pieces of a text are not looked up among the interned names: splitting takes half the time.
        (
            "    if (type == &mp_type_str) {\n        return mp_obj_new_str((const char *)data, len);",
            "    if (type == &mp_type_str && len > 1) {\n        return mp_obj_new_str_copy(type, data, len);\n"
            "    } else if (type == &mp_type_str) {\n        return mp_obj_new_str((const char *)data, len);",
        ),
        # Characters, and not bytes, where text is not ASCII (text.c).
        (
            "    if (sep == mp_const_none) {\n        // sep not given, so separate on whitespace\n",
            "    if (sep == mp_const_none && self_type == &mp_type_str && !text_is_ascii(s, len)) {\n"
            "        return text_split(s, len, splits);\n    }\n"
            "    if (sep == mp_const_none) {\n        // sep not given, so separate on whitespace\n",
        ),
        (
            "    const byte *chars_to_del;\n",
            "    if (self_type == &mp_type_str) {\n"
            "        if (n_args > 1) {\n            str_check_arg_type(self_type, args[1]);\n        }\n"
            "        return text_strip(type == LSTRIP ? TEXT_STRIP_LEFT : type == RSTRIP ? TEXT_STRIP_RIGHT : TEXT_STRIP_BOTH,\n"
            "            args[0], n_args > 1 ? args[1] : MP_OBJ_NULL);\n    }\n"
            "    const byte *chars_to_del;\n",
        ),
        (
            "    GET_STR_DATA_LEN(self_in, self_data, self_len);\n    vstr_t vstr;\n    vstr_init_len(&vstr, self_len);\n",
            "    GET_STR_DATA_LEN(self_in, self_data, self_len);\n"
            "    if (mp_obj_is_str(self_in) && !text_is_ascii(self_data, self_len)) {\n"
            "        return text_in_case(op == unichar_toupper, self_data, self_len);\n    }\n"
            "    vstr_t vstr;\n    vstr_init_len(&vstr, self_len);\n",
        ),
        (
            "    if (f != unichar_isupper && f != unichar_islower) {\n",
            "    if (mp_obj_is_str(self_in) && f != unichar_isdigit && !text_is_ascii(self_data, self_len)) {\n"
            "        text_kind_t kind = f == unichar_isalpha ? TEXT_ALPHA : f == unichar_isspace ? TEXT_SPACE\n"
            "            : f == unichar_isupper ? TEXT_UPPER : TEXT_LOWER;\n"
            "        return mp_obj_new_bool(text_is(kind, self_data, self_len));\n    }\n"
            "    if (f != unichar_isupper && f != unichar_islower) {\n",
        ),
        (
            "    mp_uint_t width = mp_obj_get_int(width_in);\n    if (str_len >= width) {\n",
            "    mp_int_t width = mp_obj_get_int(width_in) + (mp_int_t)str_len - (mp_int_t)utf8_charlen(str, str_len);\n"
            "    if ((mp_int_t)str_len >= width) {\n",
        ),
        (
            "    int left = (width - str_len) / 2;\n",
            "    int pad = width - str_len, left = pad / 2 + (pad & mp_obj_get_int(width_in) & 1);\n",
        ),
        (
            "                    if (slen > (size_t)precision) {\n                        slen = precision;\n                    }\n",
            "                    slen = text_prefix(s, slen, precision);\n",
        ),
        (
            "                if (vlen > (uint)prec) {\n                    vlen = prec;\n                }\n",
            "                vlen = is_bytes ? MIN(vlen, (uint)prec) : text_prefix(arg_vstr.buf, vlen, prec);\n",
        ),
        # Encodings and error handlers count (codecs.c).
        (
            "            // TODO: validate 2nd/3rd args\n",
            "            if (!codec_is_usual(n_args, args)) {\n                return codec_decode(n_args, args);\n            }\n",
        ),
        (
            "                if (!utf8_check(str_data, str_len)) {\n                    mp_raise_msg(&mp_type_UnicodeError, NULL);\n",
            "                if (!utf8_check(str_data, str_len)) {\n                    codec_refuse_utf8(str_data, str_len);\n",
        ),
        (
            '            mp_raise_TypeError(MP_ERROR_TEXT("string argument without an encoding"));\n            #endif\n        }\n',
            '            mp_raise_TypeError(MP_ERROR_TEXT("string argument without an encoding"));\n            #endif\n        }\n'
            "        if (!codec_is_usual(n_args, args)) {\n            return codec_encode(n_args, args);\n        }\n",
        ),
        # A number's format without a letter, such as "{:,}" (numbers.c).
        (
            "                type = 'g';\n            }\n            if (type == 'n')",
            "                type = precision < 0 ? 'r' : 'q';\n            }\n            if (type == 'n')",
        ),
        (
            "                case 'G':\n                    mp_print_float(&print, mp_obj_get_float(arg), type,",
            "                case 'G':\n                case 'r':\n                case 'q':\n                    mp_print_float(&print, mp_obj_get_float(arg), type,",
        ),
    ],
    "py/mpprint.c": [
        (
            '#include "py/mpprint.h"\n',
            '#include "py/mpprint.h"\n#include "py/runtime.h"\n#include "py/unicode.h"\n#include "numbers.h"\n',
        ),
        # A width counts characters.
        ("    int pad = width - len;\n", "    int pad = width - (int)utf8_charlen((const byte *)str, len);\n"),
        # Numbers are rounded as in Python, and 1e25 has all its digits (numbers.c).
        (
            "    char buf[32];\n    char sign = '\\0';\n    int chrs = 0;\n",
            "    char buf[NUMBER_BYTES];\n    char sign = '\\0';\n    int chrs = 0;\n",
        ),
        (
            "    int len = mp_format_float(f, buf, sizeof(buf), fmt, prec, sign);\n",
            "    int len = number_format(f, buf, sizeof(buf), fmt, prec, sign, flags & PF_FLAG_SHOW_COMMA);\n"
            '    if (len == 0) {\n        mp_raise_ValueError(MP_ERROR_TEXT("precision too big"));\n    }\n',
        ),
    ],
    "py/modbuiltins.c": [
        ('#include "py/builtin.h"\n', '#include "py/builtin.h"\n#include "numbers.h"\n'),
        (
            "    if (n_args > 1) {\n        mp_int_t num_dig = mp_obj_get_int(args[1]);\n"
            "        mp_float_t mult = MICROPY_FLOAT_C_FUN(pow)(10, (mp_float_t)num_dig);\n"
            "        // TODO may lead to overflow\n"
            "        mp_float_t rounded = MICROPY_FLOAT_C_FUN(nearbyint)(val * mult) / mult;\n"
            "        return mp_obj_new_float(rounded);\n",
            "    if (n_args > 1 && args[1] != mp_const_none) {\n"
            "        return mp_obj_new_float(number_round(val, mp_obj_get_int(args[1])));\n",
        ),
    ],
    "py/objdict.c": [
        # Dicts keep their order (ordered_map.c): the last entry is the one that popitem takes.
        (
            "    size_t cur = 0;\n    #if MICROPY_PY_COLLECTIONS_ORDEREDDICT\n    if (self->map.is_ordered) {\n"
            "        cur = self->map.used - 1;\n    }\n    #endif\n",
            "    size_t cur = self->map.alloc;\n    while (!mp_map_slot_is_filled(&self->map, --cur)) {\n    }\n",
        ),
        # A dict that changes while a loop goes through it is an error; such a loop may not end.
        (
            "    mp_obj_base_t base;\n    mp_dict_view_kind_t kind;\n    mp_obj_t dict;\n    size_t cur;\n} mp_obj_dict_view_it_t;",
            "    mp_obj_base_t base;\n    uint32_t kind : 2;\n    uint32_t size : 30;  // of the dict\n    mp_obj_t dict;\n    size_t cur;\n"
            "} mp_obj_dict_view_it_t;",
        ),
        ("    o->kind = view->kind;\n", "    o->kind = view->kind;\n    o->size = mp_obj_dict_get_map(view->dict)->used;\n"),
        (
            "    o->kind = MP_DICT_VIEW_KEYS;\n",
            "    o->kind = MP_DICT_VIEW_KEYS;\n    o->size = mp_obj_dict_get_map(self_in)->used;\n",
        ),
        (
            "    mp_map_elem_t *next = dict_iter_next(MP_OBJ_TO_PTR(self->dict), &self->cur);\n",
            "    if (self->size != mp_obj_dict_get_map(self->dict)->used) {\n"
            '        mp_raise_msg(&mp_type_RuntimeError, MP_ERROR_TEXT("dictionary changed size during iteration"));\n    }\n'
            "    mp_map_elem_t *next = dict_iter_next(MP_OBJ_TO_PTR(self->dict), &self->cur);\n",
        ),
        # dict(x) where x is of a class that an author derived from dict, such as a Counter.
        (
            "        // given a positional argument\n\n        if (mp_obj_is_dict_or_ordereddict(args[1])) {\n",
            "        // given a positional argument\n\n"
            "        mp_obj_t native = mp_obj_cast_to_native_base(args[1], MP_OBJ_FROM_PTR(&mp_type_dict));\n"
            "        if (!mp_obj_is_dict_or_ordereddict(args[1]) && native != MP_OBJ_NULL) {\n"
            "            mp_obj_t both[2] = {args[0], native};\n            dict_update(2, both, (mp_map_t *)&mp_const_empty_map);\n"
            "        } else if (mp_obj_is_dict_or_ordereddict(args[1])) {\n",
        ),
        (
            "            if (mp_obj_is_type(rhs_in, &mp_type_dict)) {\n",
            "            CHECK_DEPTH();\n            if (mp_obj_is_dict_or_ordereddict(rhs_in)) {\n",
        ),
        ('#include "py/builtin.h"\n', '#include "py/builtin.h"\n#include "depth.h"\n'),
    ],
    # Data and code that are nested too deeply end in an exception (depth.h).
    "py/obj.c": [
        ('#include "py/cstack.h"\n', '#include "depth.h"\n'),
        (
            "    // There can be data structures nested too deep, or just recursive\n    mp_cstack_check();\n",
            "    // There can be data structures nested too deep, or just recursive\n    CHECK_DEPTH();\n",
        ),
    ],
    "py/sequence.c": [
        ('#include "py/runtime.h"\n', '#include "py/runtime.h"\n#include "depth.h"\n'),
        (
            "bool mp_seq_cmp_objs(mp_uint_t op, const mp_obj_t *items1, size_t len1, const mp_obj_t *items2, size_t len2) {\n",
            "bool mp_seq_cmp_objs(mp_uint_t op, const mp_obj_t *items1, size_t len1, const mp_obj_t *items2, size_t len2) {\n"
            "    CHECK_DEPTH();\n",
        ),
    ],
    "py/objtuple.c": [
        ('#include "py/runtime.h"\n', '#include "py/runtime.h"\n#include "depth.h"\n'),
        (
            "        case MP_UNARY_OP_HASH: {\n            // start",
            "        case MP_UNARY_OP_HASH: {\n            CHECK_DEPTH();\n            // start",
        ),
    ],
    "py/compile.c": [
        ('#include "py/compile.h"\n', '#include "py/compile.h"\n#include "depth.h"\n'),
        (
            "static void compile_node(compiler_t *comp, mp_parse_node_t pn) {\n",
            "static void compile_node(compiler_t *comp, mp_parse_node_t pn) {\n    CHECK_DEPTH();\n",
        ),
    ],
    "py/objgenerator.c": [
        # The lines at which a generator raised StopIteration are told.
        (
            "                *ret_val = mp_obj_new_exception_msg(&mp_type_RuntimeError, "
            'MP_ERROR_TEXT("generator raised StopIteration"));\n',
            "                mp_obj_t stopped = *ret_val;\n                size_t len, *lines;\n"
            "                mp_obj_exception_get_traceback(stopped, &len, &lines);\n"
            "                *ret_val = mp_obj_new_exception_msg(&mp_type_RuntimeError, "
            'MP_ERROR_TEXT("generator raised StopIteration"));\n'
            "                for (size_t i = 0; i + 2 < len; i += 3) {\n"
            "                    mp_obj_exception_add_traceback(*ret_val, lines[i], lines[i + 1], lines[i + 2]);\n                }\n",
        ),
    ],
    # Sorting leaves equal items in their order (sort.c).
    "py/objlist.c": [
        ('#include "py/objlist.h"\n', '#include "py/objlist.h"\n#include "sort.h"\n'),
        (
            "        mp_quicksort(self->items, self->items + self->len - 1,\n"
            "            args.key.u_obj == mp_const_none ? MP_OBJ_NULL : args.key.u_obj,\n"
            "            args.reverse.u_bool ? mp_const_false : mp_const_true);\n",
            "        stable_sort(self, args.key.u_obj, args.reverse.u_bool);\n",
        ),
    ],
    # Floating point numbers are read and written exactly (numbers.c).
    "py/parsenum.c": [
        ('#include "py/parsenum.h"\n', '#include "py/parsenum.h"\n#include "numbers.h"\n'),
        (
            "    // negate value if needed\n    if (dec_neg) {",
            "    dec_val = number_read(str_val_start, str - str_val_start, dec_val);\n    if (dec_neg) {",
        ),
    ],
    "py/objfloat.c": [
        ('#include "py/parsenum.h"\n', '#include "py/parsenum.h"\n#include "numbers.h"\n'),
        ("mp_format_float(o_val, buf, sizeof(buf), 'g', precision, '\\0');", "number_write(o_val, buf, sizeof(buf));"),
        (
            "            lhs_val = MICROPY_FLOAT_C_FUN(pow)(lhs_val, rhs_val);\n            break;\n        case MP_BINARY_OP_DIVMOD: {\n",
            "            if (isfinite(lhs_val) && isfinite(rhs_val) && isinf(pow(lhs_val, rhs_val))) {\n"
            '                mp_raise_msg(&mp_type_OverflowError, MP_ERROR_TEXT("Numerical result out of range"));\n            }\n'
            "            lhs_val = MICROPY_FLOAT_C_FUN(pow)(lhs_val, rhs_val);\n            break;\n        case MP_BINARY_OP_DIVMOD: {\n",
        ),
    ],
    "py/objint.c": [
        (
            "    bool big_endian = n_args < 3 || args[2] != MP_OBJ_NEW_QSTR(MP_QSTR_little);\n\n    vstr_t vstr;\n",
            "    bool big_endian = n_args < 3 || args[2] != MP_OBJ_NEW_QSTR(MP_QSTR_little);\n"
            "    if (mp_obj_int_sign(args[0]) < 0) {\n"
            '        mp_raise_msg(&mp_type_OverflowError, MP_ERROR_TEXT("can\'t convert negative int to unsigned"));\n    }\n\n    vstr_t vstr;\n',
        ),
    ],
    "py/objint_mpz.c": [
        (
            "        mpz_t *rhs = mp_mpz_for_int(exponent, &r_temp);\n        mpz_t *mod",
            "        mpz_t *rhs = mp_mpz_for_int(exponent, &r_temp);\n        if (mpz_is_neg(rhs)) {\n"
            '            mp_raise_ValueError(MP_ERROR_TEXT("pow() of three numbers has no negative exponents here"));\n        }\n'
            "        mpz_t *mod",
        ),
    ],
    # True and False are of the class int.
    "py/objtype.c": [
        (
            "        if (items[i] == MP_OBJ_FROM_PTR(&mp_type_object) || mp_obj_is_subclass_fast(object, items[i])) {\n",
            "        bool is_bool = object == MP_OBJ_FROM_PTR(&mp_type_bool) && items[i] == MP_OBJ_FROM_PTR(&mp_type_int);\n"
            "        if (is_bool || items[i] == MP_OBJ_FROM_PTR(&mp_type_object) || mp_obj_is_subclass_fast(object, items[i])) {\n",
        ),
    ],
    # In Python's words.
    "py/pystack.c": [("MP_QSTR_pystack_space_exhausted", "MP_QSTR_maximum_space_recursion_space_depth_space_exceeded")],
}
