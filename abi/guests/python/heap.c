// When Python's garbage is collected.
//
// A collector must find every reference to an object, and the locals of compiled C are out of its sight in WebAssembly. So it runs
// only where no C frame holds an object that nothing else does: between two calls of the host, and on a loop's back-edge in the
// block's own frames (MICROPY_VM_HOOK_LOOP), whose values lie on MicroPython's own stack. MICROPY_STACKLESS makes calls from Python
// to Python stay there. Everywhere else a full heap grows, and the collection waits. So garbage made within one call of a C function
// that calls back (`sorted` with a key, `map`) or within one step of a nested generator stays until then.
#include <stdlib.h>

#include "py/gc.h"
#include "py/runtime.h"
#include "guest.h"

#ifndef GC_THRESHOLD
#define GC_THRESHOLD (512 * 1024)  // bytes allocated between two collections; the stress build sets 1024
#endif
#define FIRST_HEAP (256 * 1024)
#define STRESS_THRESHOLD (64 * 1024)  // below it the threshold is meant as it is

bool cf_gc_pending;

void heap_init(void) {
    char *heap = malloc(FIRST_HEAP);
    gc_init(heap, heap + FIRST_HEAP);
    MP_STATE_MEM(gc_alloc_threshold) = GC_THRESHOLD / MICROPY_BYTES_PER_GC_BLOCK;
}

// What MicroPython calls when it would collect at once.
void gc_collect(void) {
    cf_gc_pending = true;
}

// The next collection comes when half as much again was allocated as is in use, so that a large heap is not gone through all the time.
void cf_gc_now(void) {
    cf_gc_pending = false;
    gc_collect_start();
    gc_collect_end();
    if (GC_THRESHOLD >= STRESS_THRESHOLD) {
        gc_info_t info;
        gc_info(&info);
        MP_STATE_MEM(gc_alloc_threshold) = MAX(GC_THRESHOLD, info.used / 2) / MICROPY_BYTES_PER_GC_BLOCK;
    }
}

void heap_collect_if_due(void) {
    if (cf_gc_pending) {
        cf_gc_now();
    }
}

// The heap doubles when it is full. How much there is to have only the host knows: a patch in scripts/build-python-guest makes
// MicroPython ask for less, down to what it needs, when it cannot have that.
size_t gc_get_max_new_split(void) {
    return SIZE_MAX / 2;
}
