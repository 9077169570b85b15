// A row loop marked with this is compiled for several x86 levels, chosen at load time, where the
// compiler can do that. For plain functions only: neither templates nor inline.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define VOODOO_X86_LEVELS \
    __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define VOODOO_X86_LEVELS
#endif
