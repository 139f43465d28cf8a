/* A stand-in for libnvidia-ml.so.1, so that tests run the real pynvml.
 *
 * The file $FAKE_NVML is read at each call. Each line is for a GPU (its index, `0:1` for a MIG device, `*` for all GPUs
 * and for calls without a GPU); the last matching line counts:
 *
 *     <function> <gpu> <answer> [<calls>]   answer of a function: NVML error code (15: GPU is lost), -1 to hang while
 *                                           the line exists, -N to take N ms; only after this number of good calls
 *     <value> <gpu> <number or word>        a returned value, by the names in NUMBER(), number() and word()
 *     field.<id> <gpu> <number>             a field value; other fields are not supported
 *     field.<id>.error <gpu> <code>         error code of a field
 *     xids <gpu> <count>, xid <gpu> <n>     number of XIDs so far, and their code
 *
 * Names of functions have no version suffix. Codes and structures: nvml.h.
 * Build: gcc -shared -fPIC -o libnvidia-ml.so.1 nvml.c; -DOLD_DRIVER leaves out functions of driver 535 and later.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define OK 0
#define UNINITIALIZED 1
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define INSUFFICIENT_SIZE 7
#define TIMEOUT 10
#define GPUS 16
#define PLACES 7

typedef unsigned long long u64;

struct gpu { char label[8]; int index; };
static struct gpu gpus[GPUS], mig[GPUS][PLACES];
static int initialized;

/* The script --------------------------------------------------------------------------------------------------- */

struct line { char name[64], gpu[8], value[64]; long calls; };

/* Return whether a line has this name and matches the GPU; *found is the last such line. */
static int scripted(const char *name, const char *gpu, struct line *found)
{
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char text[256];
    int any = 0;
    while (file && fgets(text, sizeof text, file)) {
        struct line line = {.calls = 0};
        if (sscanf(text, "%63s %7s %63s %ld", line.name, line.gpu, line.value, &line.calls) < 3)
            continue;
        if (!strcmp(line.name, name) && (!strcmp(line.gpu, "*") || !strcmp(line.gpu, gpu))) {
            *found = line;
            any = 1;
        }
    }
    if (file)
        fclose(file);
    return any;
}

static u64 number(const char *name, const char *gpu, u64 usual)
{
    struct line line;
    return scripted(name, gpu, &line) ? strtoull(line.value, NULL, 10) : usual;
}

static void word(const char *name, const char *gpu, const char *usual, char *text, unsigned length)
{
    struct line line;
    snprintf(text, length, "%s", scripted(name, gpu, &line) ? line.value : usual);
}

/* Number of calls so far of a function for a GPU. */
static long *calls(const char *name, const char *gpu)
{
    static struct { char name[80]; long count; } known[256];
    char own[80];
    int i = 0;
    snprintf(own, sizeof own, "%s %s", name, gpu);
    while (i < 255 && known[i].name[0] && strcmp(known[i].name, own))
        i++;
    strcpy(known[i].name, own);
    return &known[i].count;
}

/* Return the answer of a call of this function. A hanging call hangs here. */
static int answer(const char *function, const char *gpu)
{
    struct line line;
    long before = (*calls(function, gpu))++;
    while (scripted(function, gpu, &line) && before >= line.calls) {
        int code = atoi(line.value);
        if (code >= 0)
            return code;
        if (code < -1) {
            usleep((unsigned)-code * 1000);
            return OK;
        }
        usleep(2000);
    }
    return OK;
}

#define ASK(function, gpu)                                                                                            \
    do {                                                                                                              \
        int code_ = answer(function, gpu);                                                                            \
        if (code_ != OK)                                                                                              \
            return code_;                                                                                             \
        if (!initialized)                                                                                             \
            return UNINITIALIZED;                                                                                     \
    } while (0)

/* The library -------------------------------------------------------------------------------------------------- */

int nvmlInitWithFlags(unsigned flags)
{
    int i, j, code = answer("nvmlInit", "*");
    (void)flags;
    if (code != OK)
        return code;
    for (i = 0; i < GPUS; i++) {
        gpus[i].index = i;
        snprintf(gpus[i].label, sizeof gpus[i].label, "%d", i);
        for (j = 0; j < PLACES; j++) {
            mig[i][j].index = i;
            snprintf(mig[i][j].label, sizeof mig[i][j].label, "%.2s:%d", gpus[i].label, j);
        }
    }
    initialized++;
    return OK;
}

int nvmlShutdown(void)
{
    ASK("nvmlShutdown", "*");
    initialized--;
    return OK;
}

const char *nvmlErrorString(int code)
{
    switch (code) {
    case 1: return "Uninitialized";
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 9: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    ASK("nvmlSystemGetDriverVersion", "*");
    word("driver", "*", "570.86.15", version, length);
    return OK;
}

int nvmlSystemGetCudaDriverVersion(int *version)
{
    ASK("nvmlSystemGetCudaDriverVersion", "*");
    *version = (int)number("cuda", "*", 12080);
    return OK;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    ASK("nvmlDeviceGetCount", "*");
    *count = (unsigned)number("gpus", "*", 2);
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct gpu **device)
{
    if (index >= GPUS)
        return INVALID_ARGUMENT;
    ASK("nvmlDeviceGetHandleByIndex", gpus[index].label);
    *device = &gpus[index];
    return OK;
}

/* Values of a GPU ---------------------------------------------------------------------------------------------- */

#define NUMBER(function, type, name, usual)                                                                           \
    int function(struct gpu *g, type *value)                                                                          \
    {                                                                                                                 \
        ASK(#function, g->label);                                                                                     \
        *value = (type)number(name, g->label, usual);                                                                 \
        return OK;                                                                                                    \
    }

#define WORD(function, name, usual)                                                                                   \
    int function(struct gpu *g, char *text, unsigned length)                                                          \
    {                                                                                                                 \
        char otherwise[64];                                                                                           \
        ASK(#function, g->label);                                                                                     \
        snprintf(otherwise, sizeof otherwise, usual, g->label);                                                       \
        word(name, g->label, otherwise, text, length);                                                                \
        return OK;                                                                                                    \
    }

/* Clock types: 0 graphics, 1 SM, 2 memory. In MHz. */
#define CLOCK(function, sm, sm_usual, memory, memory_usual)                                                           \
    int function(struct gpu *g, int type, unsigned *mhz)                                                              \
    {                                                                                                                 \
        ASK(#function, g->label);                                                                                     \
        *mhz = (unsigned)(type == 2 ? number(memory, g->label, memory_usual) : number(sm, g->label, sm_usual));       \
        return OK;                                                                                                    \
    }

WORD(nvmlDeviceGetName, "name", "Fake-%s")
WORD(nvmlDeviceGetUUID, "uuid", "GPU-%s")
WORD(nvmlDeviceGetVbiosVersion, "vbios", "96.00.%s")

CLOCK(nvmlDeviceGetClockInfo, "sm_clock", 1410, "memory_clock", 2619)
CLOCK(nvmlDeviceGetMaxClockInfo, "sm_clock_max", 1980, "memory_clock_max", 2619)

NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, "link_generation", 5)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, "link_lanes", 16)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, "link_generation_max", 5)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, "link_lanes_max", 16)
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned, "replays", 0)
NUMBER(nvmlDeviceGetPersistenceMode, unsigned, "persistence", 1)
NUMBER(nvmlDeviceGetComputeMode, unsigned, "compute_mode", 0)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, "power_limit", 700000)

int nvmlDeviceGetTemperature(struct gpu *g, int sensor, unsigned *celsius)
{
    ASK("nvmlDeviceGetTemperature", g->label);
    (void)sensor;
    *celsius = (unsigned)number("temperature", g->label, 41);
    return OK;
}

#ifndef OLD_DRIVER
struct temperature { unsigned version; int sensor; int celsius; };

int nvmlDeviceGetTemperatureV(struct gpu *g, struct temperature *temperature)
{
    ASK("nvmlDeviceGetTemperatureV", g->label);
    temperature->celsius = (int)number("temperature", g->label, 41);
    return OK;
}
#endif

/* In mJ; with `power <gpu> <watts>` the counter grows every 100 ms. */
int nvmlDeviceGetTotalEnergyConsumption(struct gpu *g, u64 *energy)
{
    struct timespec now;
    ASK("nvmlDeviceGetTotalEnergyConsumption", g->label);
    clock_gettime(CLOCK_BOOTTIME, &now);
    u64 ms = (u64)now.tv_sec * 1000 + (u64)now.tv_nsec / 1000000;
    *energy = number("energy", g->label, 1500) + number("power", g->label, 0) * (ms / 100 * 100);
    return OK;
}

int nvmlDeviceGetUtilizationRates(struct gpu *g, unsigned *rates)
{
    ASK("nvmlDeviceGetUtilizationRates", g->label);
    rates[0] = (unsigned)number("utilization", g->label, 25); /* per cent of time; rates[1] is for the memory */
    rates[1] = 50;
    return OK;
}

int nvmlDeviceGetMemoryInfo(struct gpu *g, u64 *memory)
{
    ASK("nvmlDeviceGetMemoryInfo", g->label);
    memory[0] = number("memory_size", g->label, 80ULL << 30);
    memory[2] = number("memory_used", g->label, 3ULL << 30);
    memory[1] = memory[0] - memory[2];
    return OK;
}

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };

int nvmlDeviceGetPciInfo_v3(struct gpu *g, struct pci *pci)
{
    ASK("nvmlDeviceGetPciInfo", g->label);
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0",
             (unsigned)number("bus", g->label, 0x1B + g->index));
    return OK;
}

int nvmlDeviceGetCpuAffinity(struct gpu *g, unsigned words, u64 *cpus)
{
    ASK("nvmlDeviceGetCpuAffinity", g->label);
    memset(cpus, 0, words * sizeof *cpus);
    cpus[0] = number("cpus", g->label, 0xF);
    return OK;
}

/* type: 0 corrected, 1 uncorrected; counter: 0 volatile. */
int nvmlDeviceGetTotalEccErrors(struct gpu *g, int type, int counter, u64 *errors)
{
    ASK("nvmlDeviceGetTotalEccErrors", g->label);
    *errors = counter ? 0 : number(type ? "ecc_uncorrected" : "ecc_corrected", g->label, 0);
    return OK;
}

int nvmlDeviceGetRemappedRows(struct gpu *g, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed)
{
    ASK("nvmlDeviceGetRemappedRows", g->label);
    *corrected = (unsigned)number("remapped_corrected", g->label, 0);
    *uncorrected = (unsigned)number("remapped_uncorrected", g->label, 0);
    *pending = (unsigned)number("remap_pending", g->label, 0);
    *failed = (unsigned)number("remap_failed", g->label, 0);
    return OK;
}

struct field { unsigned id, scope; long long timestamp, microseconds; unsigned type, code; u64 value; };

int nvmlDeviceGetFieldValues(struct gpu *g, int count, struct field *fields)
{
    struct line line;
    char name[32];
    int i;
    ASK("nvmlDeviceGetFieldValues", g->label);
    for (i = 0; i < count; i++) {
        snprintf(name, sizeof name, "field.%u", fields[i].id);
        fields[i].code = scripted(name, g->label, &line) ? OK : NOT_SUPPORTED;
        fields[i].type = fields[i].id == 82 || fields[i].id == 230 ? 1 : 3; /* unsigned int, unsigned long long */
        fields[i].value = number(name, g->label, 0);
        fields[i].microseconds = 3;
        strcat(name, ".error");
        fields[i].code = (unsigned)number(name, g->label, fields[i].code);
    }
    return OK;
}

/* MIG ---------------------------------------------------------------------------------------------------------- */

int nvmlDeviceGetMigMode(struct gpu *g, unsigned *current, unsigned *pending)
{
    ASK("nvmlDeviceGetMigMode", g->label);
    *current = *pending = (unsigned)number("mig", g->label, 0);
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(struct gpu *g, unsigned *count)
{
    ASK("nvmlDeviceGetMaxMigDeviceCount", g->label);
    *count = PLACES;
    return OK;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct gpu *g, struct gpu **device)
{
    ASK("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", g->label);
    *device = &gpus[g->index];
    return OK;
}

int nvmlDeviceGetMinorNumber(struct gpu *g, unsigned *minor)
{
    ASK("nvmlDeviceGetMinorNumber", g->label);
    *minor = (unsigned)number("minor", g->label, (u64)g->index);
    return OK;
}

struct process { unsigned pid; u64 memory; unsigned gpu_instance, compute_instance; };

/* `processes 0 3`: number of processes; their PIDs have no meaning here. */
int nvmlDeviceGetComputeRunningProcesses_v3(struct gpu *g, unsigned *count, struct process *found)
{
    unsigned i, all, room = *count;
    ASK("nvmlDeviceGetComputeRunningProcesses", g->label);
    *count = all = (unsigned)number("processes", g->label, 1);
    if (all > room)
        return INSUFFICIENT_SIZE;
    for (i = 0; i < all; i++)
        found[i] = (struct process){.pid = 4000 + i, .memory = 1 << 20};
    return OK;
}

/* `mps_processes 0 2`: clients of an MPS daemon. */
int nvmlDeviceGetMPSComputeRunningProcesses_v3(struct gpu *g, unsigned *count, struct process *found)
{
    unsigned i, all, room = *count;
    ASK("nvmlDeviceGetMPSComputeRunningProcesses", g->label);
    *count = all = (unsigned)number("mps_processes", g->label, 0);
    if (all > room)
        return INSUFFICIENT_SIZE;
    for (i = 0; i < all; i++)
        found[i] = (struct process){.pid = 5000 + i, .memory = 1 << 20};
    return OK;
}

/* `restricted 0 1`: only root may set application clocks. */
int nvmlDeviceGetAPIRestriction(struct gpu *g, int api, unsigned *restricted)
{
    ASK("nvmlDeviceGetAPIRestriction", g->label);
    *restricted = (unsigned)number("restricted", g->label, 0);
    return api ? NOT_SUPPORTED : OK;
}

int nvmlDeviceGetSupportedMemoryClocks(struct gpu *g, unsigned *count, unsigned *mhz)
{
    unsigned room = *count;
    ASK("nvmlDeviceGetSupportedMemoryClocks", g->label);
    *count = 2;
    if (room < 2)
        return INSUFFICIENT_SIZE;
    mhz[0] = 2619;
    mhz[1] = 1593;
    return OK;
}

int nvmlDeviceGetSupportedGraphicsClocks(struct gpu *g, unsigned memory, unsigned *count, unsigned *mhz)
{
    unsigned i, room = *count;
    ASK("nvmlDeviceGetSupportedGraphicsClocks", g->label);
    if (memory != 2619)
        return NOT_FOUND;
    *count = 110;
    if (room < 110)
        return INSUFFICIENT_SIZE;
    for (i = 0; i < 110; i++)
        mhz[i] = 1980 - 15 * i;
    return OK;
}

/* `mig_devices 0 5` is a bit mask: places 0 and 2. */
int nvmlDeviceGetMigDeviceHandleByIndex(struct gpu *g, unsigned place, struct gpu **device)
{
    ASK("nvmlDeviceGetMigDeviceHandleByIndex", g->label);
    if (!(number("mig_devices", g->label, 0) >> place & 1))
        return NOT_FOUND;
    *device = &mig[g->index][place];
    return OK;
}

/* Events ------------------------------------------------------------------------------------------------------- */

struct event { struct gpu *device; u64 type, data; unsigned gpu_instance, compute_instance; };
struct event_set { int watches[GPUS]; };
static u64 delivered[GPUS];
static int event_sets;

int nvmlEventSetCreate(struct event_set **set)
{
    ASK("nvmlEventSetCreate", "*");
    *set = calloc(1, sizeof **set);
    event_sets++;
    return OK;
}

int nvmlDeviceRegisterEvents(struct gpu *g, u64 types, struct event_set *set)
{
    ASK("nvmlDeviceRegisterEvents", g->label);
    set->watches[g->index] = types == 8;
    return OK;
}

int nvmlEventSetWait_v2(struct event_set *set, struct event *event, unsigned milliseconds)
{
    int i;
    (void)milliseconds;
    ASK("nvmlEventSetWait", "*");
    for (i = 0; i < GPUS; i++)
        if (set->watches[i] && delivered[i] < number("xids", gpus[i].label, 0)) {
            delivered[i]++;
            *event = (struct event){&gpus[i], 8, number("xid", gpus[i].label, 31), ~0u, ~0u};
            return OK;
        }
    return TIMEOUT;
}

int nvmlEventSetFree(struct event_set *set)
{
    ASK("nvmlEventSetFree", "*");
    free(set);
    event_sets--;
    return OK;
}

/* For the tests: number of created objects that were not released. */
int fakeHeld(void) { return 1000 * event_sets + initialized; }
