// setjmp and longjmp are compiled to WebAssembly exceptions. zig's wasi libc has their code but not the tag that they throw.
__asm__(".globl __c_longjmp\n.tagtype __c_longjmp i32\n__c_longjmp:\n");
