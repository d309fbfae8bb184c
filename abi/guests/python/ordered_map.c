// Dicts and sets, in the place of MicroPython's py/map.c.
//
// Python's dicts keep the order in which keys came; MicroPython's do not, and with many keys they crawl, as their tables are filled to
// the last slot and texts have hashes of 16 bits. Here a dict is an array of its entries, in order. A small one is searched from end to
// end. Behind a larger one, in the same block of memory, stands an index: open addressing over twice as many words as there are
// entries, each the place of an entry plus one, or 0. A removed entry leaves a gap (MP_OBJ_SENTINEL) until the array is full.
//
// What the rest of MicroPython relies on: `table` has `alloc` entries, of which those are filled whose key is neither MP_OBJ_NULL nor
// MP_OBJ_SENTINEL; `used` counts them; and a map that is copied, entries only, by memcpy works (its index is then built when needed).
#include <string.h>

#include "py/runtime.h"

#define SMALL 8  // entries; more have an index

typedef struct {
    uint32_t begun;  // entries that stand in the array or stood there, plus one; 0: the index is not built yet
    uint32_t unused; // the index begins at a multiple of eight bytes, as entries do
    uint32_t places[];
} index_t;

static index_t *index_of(const mp_map_t *map) {
    return (index_t *)(map->table + map->alloc);
}

static size_t words_of(const mp_map_t *map) {  // a power of two
    return 2 * map->alloc;
}

static size_t entries_and_index(size_t alloc) {  // in entries, for the size of a block
    return alloc <= SMALL ? alloc : 2 * alloc + sizeof(index_t) / sizeof(mp_map_elem_t);
}

static size_t power_of_two(size_t least) {
    size_t size = 2 * SMALL;
    while (size < least) {
        size *= 2;
    }
    return size;
}

// Where to look first, in a table whose size is a power of two. Hashes of texts have 16 bits, so they are spread.
static size_t first_place(mp_uint_t hash, size_t size) {
    return (uint32_t)hash * 2654435769u >> (__builtin_clz((uint32_t)size) + 1);
}

static mp_uint_t hash_of(mp_obj_t key) {
    return mp_obj_is_qstr(key) ? qstr_hash(MP_OBJ_QSTR_VALUE(key)) : (mp_uint_t)MP_OBJ_SMALL_INT_VALUE(mp_unary_op(MP_UNARY_OP_HASH, key));
}

// ---- making and dropping

static size_t fitting(size_t entries) {
    return entries <= SMALL ? entries : power_of_two(entries);
}

void mp_map_init(mp_map_t *map, size_t entries) {
    map->alloc = fitting(entries);
    map->table = entries == 0 ? NULL : m_new0(mp_map_elem_t, entries_and_index(map->alloc));
    map->used = 0;
    map->all_keys_are_qstrs = 1;
    map->is_fixed = 0;
    map->is_ordered = 0;
}

void mp_map_init_fixed_table(mp_map_t *map, size_t entries, const mp_obj_t *table) {
    map->alloc = entries;
    map->used = entries;
    map->all_keys_are_qstrs = 1;
    map->is_fixed = 1;
    map->is_ordered = 1;
    map->table = (mp_map_elem_t *)table;
}

void mp_map_deinit(mp_map_t *map) {
    if (!map->is_fixed) {
        m_del(mp_map_elem_t, map->table, entries_and_index(map->alloc));
    }
    map->used = map->alloc = 0;
}

void mp_map_clear(mp_map_t *map) {
    mp_map_deinit(map);
    map->all_keys_are_qstrs = 1;
    map->is_fixed = 0;
    map->table = NULL;
}

// ---- the index

static void add_to_index(mp_map_t *map, size_t at, mp_uint_t hash) {
    size_t words = words_of(map), place = first_place(hash, words);
    uint32_t *places = index_of(map)->places;
    while (places[place] != 0) {
        place = (place + 1) % words;
    }
    places[place] = at + 1;
}

// For a map whose entries are right and whose index is all zero.
static void build_index(mp_map_t *map) {
    size_t end = 0;
    for (size_t at = 0; at < map->alloc; at++) {
        if (mp_map_slot_is_filled(map, at)) {
            add_to_index(map, at, hash_of(map->table[at].key));
            end = at + 1;
        }
    }
    index_of(map)->begun = end + 1;
}

// More room, or the same again without gaps when there are many.
static void make_room(mp_map_t *map) {
    size_t wanted = map->used < map->alloc - map->alloc / 4 ? map->alloc : map->alloc == 0 ? 2 : 2 * map->alloc;
    mp_map_t larger = *map;
    larger.alloc = fitting(wanted);
    larger.table = m_new0(mp_map_elem_t, entries_and_index(larger.alloc));
    size_t end = 0;
    for (size_t at = 0; at < map->alloc; at++) {
        if (mp_map_slot_is_filled(map, at)) {
            larger.table[end++] = map->table[at];
        }
    }
    if (larger.alloc > SMALL) {
        build_index(&larger);
    }
    m_del(mp_map_elem_t, map->table, entries_and_index(map->alloc));
    *map = larger;
}

// ---- looking up

#if MICROPY_OPT_MAP_LOOKUP_CACHE
// The place where a key was last found in whatever map, as in MicroPython's own: most lookups are of names in small and fixed maps.
static uint8_t *cached_place(mp_obj_t key) {
    return &MP_STATE_VM(map_lookup_cache)[((uintptr_t)key >> 2) % MICROPY_OPT_MAP_LOOKUP_CACHE_SIZE];
}
#endif

static mp_map_elem_t *found(mp_map_t *map, mp_map_elem_t *entry, mp_obj_t key, mp_map_lookup_kind_t kind) {
    if (kind != MP_MAP_LOOKUP_REMOVE_IF_FOUND) {
        #if MICROPY_OPT_MAP_LOOKUP_CACHE
        *cached_place(key) = entry - map->table;
        #endif
        return entry;
    }
    map->used--;
    if (map->alloc > SMALL) {
        entry->key = MP_OBJ_SENTINEL;
        return entry;
    }
    // No gap in a small map. The entry goes behind the others, where the caller may still read its value.
    mp_obj_t value = entry->value;
    mp_map_elem_t *last = &map->table[map->used];
    memmove(entry, entry + 1, (last - entry) * sizeof(*entry));
    last->key = MP_OBJ_NULL;
    last->value = value;
    return last;
}

static mp_map_elem_t *add_entry(mp_map_t *map, size_t at, mp_obj_t key) {
    mp_map_elem_t *entry = &map->table[at];
    entry->key = key;
    entry->value = MP_OBJ_NULL;
    map->used++;
    if (!mp_obj_is_qstr(key)) {
        map->all_keys_are_qstrs = 0;
    }
    return entry;
}

static mp_map_elem_t *look_up_small(mp_map_t *map, mp_obj_t key, mp_map_lookup_kind_t kind, bool compare_only_pointers) {
    for (mp_map_elem_t *entry = map->table, *end = map->table + map->used; entry < end; entry++) {
        if (entry->key == key || (!compare_only_pointers && mp_obj_equal(entry->key, key))) {
            return found(map, entry, key, kind);
        }
    }
    if (kind != MP_MAP_LOOKUP_ADD_IF_NOT_FOUND) {
        return NULL;
    }
    if (map->used == map->alloc) {
        make_room(map);
        if (map->alloc > SMALL) {
            add_to_index(map, map->used, hash_of(key));
            index_of(map)->begun++;
        }
    }
    return add_entry(map, map->used, key);
}

static mp_map_elem_t *look_up_indexed(mp_map_t *map, mp_obj_t key, mp_map_lookup_kind_t kind, bool compare_only_pointers) {
    mp_uint_t hash = hash_of(key);
    if (index_of(map)->begun == 0) {
        build_index(map);
    }
    uint32_t *places = index_of(map)->places;
    size_t words = words_of(map), place = first_place(hash, words);
    for (; places[place] != 0; place = (place + 1) % words) {
        mp_map_elem_t *entry = &map->table[places[place] - 1];
        if (entry->key == key
            || (!compare_only_pointers && entry->key != MP_OBJ_SENTINEL && mp_obj_equal(entry->key, key))) {
            return found(map, entry, key, kind);
        }
    }
    if (kind != MP_MAP_LOOKUP_ADD_IF_NOT_FOUND) {
        return NULL;
    }
    if (index_of(map)->begun > map->alloc) {
        make_room(map);
    }
    size_t at = index_of(map)->begun++ - 1;
    add_to_index(map, at, hash);
    return add_entry(map, at, key);
}

mp_map_elem_t *mp_map_lookup(mp_map_t *map, mp_obj_t key, mp_map_lookup_kind_t kind) {
    #if MICROPY_OPT_MAP_LOOKUP_CACHE
    if (kind != MP_MAP_LOOKUP_REMOVE_IF_FOUND && map->alloc > 0) {
        mp_map_elem_t *entry = &map->table[*cached_place(key) % map->alloc];
        if (entry->key == key) {
            return entry;
        }
    }
    #endif
    bool compare_only_pointers = map->all_keys_are_qstrs;
    if (compare_only_pointers && !mp_obj_is_qstr(key)) {
        if (mp_obj_is_exact_type(key, &mp_type_str)) {
            compare_only_pointers = false;  // an interned text may equal one that is not
        } else {
            compare_only_pointers = false;
        }
    }
    if (map->is_fixed || map->alloc <= SMALL) {
        if (!compare_only_pointers && !mp_obj_is_str(key) && !mp_obj_is_small_int(key)) {
            hash_of(key);  // raises for what cannot be a key
        }
        return look_up_small(map, key, kind, compare_only_pointers);
    }
    return look_up_indexed(map, key, kind, compare_only_pointers);
}

// ---- sets: open addressing, at most three quarters full, in no order

void mp_set_init(mp_set_t *set, size_t items) {
    set->alloc = items == 0 ? 0 : power_of_two(items);  // a set is copied into one that is made for its `alloc`
    set->used = 0;
    set->table = items == 0 ? NULL : m_new0(mp_obj_t, set->alloc);
}

static void grow_set(mp_set_t *set) {
    size_t old_alloc = set->alloc;
    mp_obj_t *old_table = set->table;
    mp_set_init(set, MAX(SMALL, 2 * set->used));
    for (size_t at = 0; at < old_alloc; at++) {
        if (old_table[at] != MP_OBJ_NULL && old_table[at] != MP_OBJ_SENTINEL) {
            mp_set_lookup(set, old_table[at], MP_MAP_LOOKUP_ADD_IF_NOT_FOUND);
        }
    }
    m_del(mp_obj_t, old_table, old_alloc);
}

// `kind` is a set of bits here: MP_MAP_LOOKUP_ADD_IF_NOT_FOUND_OR_REMOVE_IF_FOUND is both.
mp_obj_t mp_set_lookup(mp_set_t *set, mp_obj_t item, mp_map_lookup_kind_t kind) {
    mp_uint_t hash = hash_of(item);
    size_t gap = SIZE_MAX, gaps = 0, place = 0;
    if (set->alloc > 0) {
        for (place = first_place(hash, set->alloc); set->table[place] != MP_OBJ_NULL; place = (place + 1) % set->alloc) {
            mp_obj_t there = set->table[place];
            if (there == MP_OBJ_SENTINEL) {
                gap = gap == SIZE_MAX ? place : gap;
                if (++gaps == set->alloc) {
                    break;  // nothing but gaps
                }
            } else if (there == item || mp_obj_equal(there, item)) {
                if (kind & MP_MAP_LOOKUP_REMOVE_IF_FOUND) {
                    set->used--;
                    set->table[place] = set->table[(place + 1) % set->alloc] == MP_OBJ_NULL ? MP_OBJ_NULL : MP_OBJ_SENTINEL;
                }
                return there;
            }
        }
    }
    if (!(kind & MP_MAP_LOOKUP_ADD_IF_NOT_FOUND)) {
        return MP_OBJ_NULL;
    }
    // A table with many gaps is made anew too: a search ends only at an empty place.
    if (4 * (set->used + 1) > 3 * set->alloc || gaps > set->alloc / 4) {
        grow_set(set);
        return mp_set_lookup(set, item, kind);
    }
    set->used++;
    set->table[gap == SIZE_MAX ? place : gap] = item;
    return item;
}

mp_obj_t mp_set_remove_first(mp_set_t *set) {
    for (size_t at = 0; at < set->alloc; at++) {
        if (mp_set_slot_is_filled(set, at)) {
            mp_obj_t item = set->table[at];
            set->used--;
            set->table[at] = MP_OBJ_SENTINEL;
            return item;
        }
    }
    return MP_OBJ_NULL;
}

void mp_set_clear(mp_set_t *set) {
    m_del(mp_obj_t, set->table, set->alloc);
    set->alloc = 0;
    set->used = 0;
    set->table = NULL;
}
