/* Hides AVX, AVX2, AVX-512 and FMA from libraries that this process loads later, as a CPU without them would.

   Loaded by limits_onnx.py, because ONNX Runtime has no setting for this. Needs CPUID faulting (flag cpuid_fault in
   /proc/cpuinfo): the instruction CPUID then raises a signal, whose handler answers it. */
#define _GNU_SOURCE
#include <asm/prctl.h>
#include <cpuid.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

static void answer(int signal_number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *code = (const unsigned char *)registers[REG_RIP];
    unsigned leaf = registers[REG_RAX], a, b, c, d;
    if (code[0] != 0x0f || code[1] != 0xa2) { /* another fault */
        signal(SIGSEGV, SIG_DFL);
        return;
    }
    syscall(SYS_arch_prctl, ARCH_SET_CPUID, 1);
    __cpuid_count(leaf, (unsigned)registers[REG_RCX], a, b, c, d);
    syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0);
    if (leaf == 1)
        c &= ~(1u << 28 | 1u << 12);
    if (leaf == 7)
        b &= ~(1u << 5 | 1u << 16);
    registers[REG_RAX] = a;
    registers[REG_RBX] = b;
    registers[REG_RCX] = c;
    registers[REG_RDX] = d;
    registers[REG_RIP] += 2;
}

/* Returns 0 if the CPU can do this. */
long narrow(void) {
    struct sigaction action = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, 0);
    return syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0);
}
