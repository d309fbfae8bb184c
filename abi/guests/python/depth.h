// Recursion in C ends in an exception well before WebAssembly's own stack does, which would end the block. MicroPython measures the stack
// that C keeps in memory; most of a frame lies elsewhere, so each level of a recursive function takes some of it. Used by patches.py.
#include "py/cstack.h"

#define CHECK_DEPTH() \
    char on_stack[128]; \
    __asm__ volatile ("" : : "r" (on_stack) : "memory"); \
    mp_cstack_check()
