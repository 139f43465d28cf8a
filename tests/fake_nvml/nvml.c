/* A stand-in for libnvidia-ml.so.1 with two GPUs, so that tests run the real pynvml.
 *
 * The file named by $FAKE_NVML is read at each call; a line `<function> <gpu or *> <answer>` replaces what a function
 * does: an NVML error code (15: GPU is lost), or -1 to hang. Names are without the version suffix:
 *
 *     nvmlInit * 9
 *     nvmlDeviceGetTemperature 1 3
 *
 * Codes and structures: nvml.h. Build: gcc -shared -fPIC -o libnvidia-ml.so.1 nvml.c
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OK 0
#define UNINITIALIZED 1
#define INVALID_ARGUMENT 2
#define GPUS 2

static int initialized;

struct gpu { int index; };
static struct gpu gpus[GPUS] = {{0}, {1}};

static int scripted(const char *function, int gpu)
{
    char name[64], which[8], own[8];
    int answer, found = OK;
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file)
        return OK;
    snprintf(own, sizeof own, "%d", gpu);
    while (fscanf(file, "%63s %7s %d", name, which, &answer) == 3)
        if (!strcmp(name, function) && (!strcmp(which, "*") || !strcmp(which, own)))
            found = answer;
    fclose(file);
    while (found == -1)
        pause();
    return found;
}

#define ASK(gpu)                                                                                                      \
    do {                                                                                                              \
        int answer_ = scripted(__func__, gpu);                                                                        \
        if (answer_ != OK)                                                                                            \
            return answer_;                                                                                           \
        if (!initialized)                                                                                             \
            return UNINITIALIZED;                                                                                     \
    } while (0)

int nvmlInitWithFlags(unsigned flags)
{
    int answer = scripted("nvmlInit", -1);
    (void)flags;
    if (answer == OK)
        initialized++;
    return answer;
}

int nvmlShutdown(void)
{
    ASK(-1);
    initialized--;
    return OK;
}

const char *nvmlErrorString(int code)
{
    switch (code) {
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
    ASK(-1);
    snprintf(version, length, "570.86.15");
    return OK;
}

static int get_count(unsigned *count, const char *name)
{
    int answer = scripted(name, -1);
    if (answer != OK)
        return answer;
    if (!initialized)
        return UNINITIALIZED;
    *count = GPUS;
    return OK;
}
int nvmlDeviceGetCount_v2(unsigned *count) { return get_count(count, "nvmlDeviceGetCount"); }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct gpu **device)
{
    int answer = scripted("nvmlDeviceGetHandleByIndex", (int)index);
    if (answer != OK)
        return answer;
    if (index >= GPUS)
        return INVALID_ARGUMENT;
    *device = &gpus[index];
    return OK;
}

int nvmlDeviceGetName(struct gpu *g, char *name, unsigned length)
{
    ASK(g->index);
    snprintf(name, length, "NVIDIA Fake %c", 'A' + g->index);
    return OK;
}

int nvmlDeviceGetUUID(struct gpu *g, char *uuid, unsigned length)
{
    ASK(g->index);
    snprintf(uuid, length, "GPU-0000000%d", g->index);
    return OK;
}

/* Clock types: 0 graphics, 1 SM, 2 memory. In MHz. */
int nvmlDeviceGetClockInfo(struct gpu *g, int type, unsigned *mhz)
{
    ASK(g->index);
    *mhz = (type == 2 ? 2619 : 1410) + g->index;
    return OK;
}

int nvmlDeviceGetMaxClockInfo(struct gpu *g, int type, unsigned *mhz)
{
    ASK(g->index);
    *mhz = type == 2 ? 2619 : 1980;
    return OK;
}

int nvmlDeviceGetTemperature(struct gpu *g, int sensor, unsigned *celsius)
{
    ASK(g->index);
    (void)sensor;
    *celsius = 41 + g->index;
    return OK;
}

int nvmlDeviceGetTotalEnergyConsumption(struct gpu *g, unsigned long long *millijoules)
{
    ASK(g->index);
    *millijoules = 123456789ULL;
    return OK;
}

int nvmlDeviceGetUtilizationRates(struct gpu *g, unsigned *rates)
{
    ASK(g->index);
    rates[0] = 25; /* gpu, memory: per cent */
    rates[1] = 50;
    return OK;
}

int nvmlDeviceGetMemoryInfo(struct gpu *g, unsigned long long *memory)
{
    ASK(g->index);
    memory[0] = 80ULL << 30; /* total, free, used */
    memory[1] = 77ULL << 30;
    memory[2] = 3ULL << 30;
    return OK;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetCurrentClocksEventReasons(struct gpu *g, unsigned long long *reasons)
{
    ASK(g->index);
    *reasons = 0x4 | 0x40; /* software power cap, hardware thermal slowdown */
    return OK;
}
#endif

int nvmlDeviceGetCurrentClocksThrottleReasons(struct gpu *g, unsigned long long *reasons)
{
    ASK(g->index);
    *reasons = 0x1; /* idle */
    return OK;
}
