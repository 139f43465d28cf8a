/* A stand-in for libcuda.so.1 with one GPU, so that tests run the real ctypes code.
 *
 * The stand-in is as strict as the driver: a call without a current context, with a dead handle or with foreign memory
 * fails with the driver's code. Copies are executed in the host's memory when a call waits for them. A stream executes
 * its work in order, in simulated time: an event happens after the durations of all earlier work. Kernels are known by
 * name, and a module must declare them.
 *
 * fake_cuda_script(text) sets the behaviour from now on. Lines: `<function> <n> <code>` makes a function fail from its
 * n-th call on, with names as in the library; `<kernel> <microseconds>` sets a duration (h2d, d2h and event are kernels
 * here); `version <number>` sets the result of cuDriverGetVersion. A code from 700 on is sticky: all later calls with
 * a context fail, too.
 *
 * fake_cuda_count(what) returns the number of objects (contexts retained, contexts pushed, streams, events, modules,
 * allocations, pinned) or of calls of a function. Codes: cuda.h. Build: cc -shared -fPIC -o libcuda.so.1 cuda.c
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    OK, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700,
    NOT_SUPPORTED = 801,
};
enum kind { NONE, STREAM, EVENT, MODULE, FUNCTION, DEVICE_MEMORY, PINNED };

struct thing {
    enum kind kind;
    int64_t at;        /* event: its time; stream: end of all its work */
    int recorded;
    const char *name;  /* function */
    char *memory;
    size_t size;
};

#define THINGS 256
#define HOSTS_OWN ((void *)0xA11CE) /* a context that a host may have made current, which the probe must not use */
static struct thing things[THINGS];
static int initialized, retained, sticky, launches, priority = -100;
static __thread void *stack[16];
static __thread int depth;
static char the_context;
static struct { char name[40]; int calls; } called[64];

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int *calls_of(const char *function)
{
    int i = 0;
    while (called[i].name[0] && strcmp(called[i].name, function))
        i++;
    strcpy(called[i].name, function);
    return &called[i].calls;
}

static char script[4096];

void fake_cuda_script(const char *text)
{
    snprintf(script, sizeof script, "%s", text);
    memset(called, 0, sizeof called);
}

/* A process that a test cannot call gets its script from $FAKE_CUDA. `<function> <n> -1` hangs. */
__attribute__((constructor)) static void from_environment(void)
{
    if (getenv("FAKE_CUDA"))
        fake_cuda_script(getenv("FAKE_CUDA"));
}

static int scripted(const char *function)
{
    char name[64];
    int code, first, answer = OK, calls = ++*calls_of(function);
    for (const char *line = script; *line; line += strcspn(line, "\n"), line += *line == '\n')
        if (sscanf(line, "%63s %d %d", name, &first, &code) == 3 && !strcmp(name, function) && calls >= first)
            answer = code;
    while (answer == -1)
        pause();
    if (answer >= 700)
        sticky = answer;
    return answer;
}

static double given(const char *what, double value)
{
    char name[64];
    double found;
    for (const char *line = script; *line; line += strcspn(line, "\n"), line += *line == '\n')
        if (sscanf(line, "%63s %lf", name, &found) == 2 && !strcmp(name, what))
            value = found;
    return value;
}

static int64_t takes(const char *kernel, double microseconds)
{
    return (int64_t)(given(kernel, microseconds) * 1000);
}

#define ASK()                                                                                                         \
    do {                                                                                                              \
        int answer_ = scripted(__func__);                                                                             \
        if (answer_ != OK)                                                                                            \
            return answer_;                                                                                           \
        if (!initialized)                                                                                             \
            return NOT_INITIALIZED;                                                                                   \
    } while (0)

#define ASK_IN_CONTEXT()                                                                                              \
    do {                                                                                                              \
        ASK();                                                                                                        \
        if (!depth || stack[depth - 1] != &the_context)                                                               \
            return INVALID_CONTEXT;                                                                                   \
        if (sticky)                                                                                                   \
            return sticky;                                                                                            \
    } while (0)

static struct thing *alive(void *handle, enum kind kind)
{
    for (int i = 0; i < THINGS; i++)
        if (handle == &things[i] && things[i].kind == kind)
            return &things[i];
    return NULL;
}

static struct thing *make(enum kind kind)
{
    for (int i = 0; i < THINGS; i++)
        if (things[i].kind == NONE) {
            memset(&things[i], 0, sizeof things[i]);
            things[i].kind = kind;
            return &things[i];
        }
    abort();
}

static struct thing *memory(const void *address, size_t size)
{
    for (int i = 0; i < THINGS; i++)
        if ((things[i].kind == DEVICE_MEMORY || things[i].kind == PINNED) &&
            (char *)address >= things[i].memory && (char *)address + size <= things[i].memory + things[i].size)
            return &things[i];
    return NULL;
}

static void enqueue(struct thing *stream, int64_t ns)
{
    int64_t begin = now();
    stream->at = (stream->at > begin ? stream->at : begin) + ns;
}

#define PENDING 4096
static struct { char *to; const char *from; size_t size; } pending[PENDING];
static int waiting;

static void copy_later(char *to, const char *from, size_t size)
{
    if (waiting && pending[waiting - 1].to == to && pending[waiting - 1].from == from)
        return; /* equal copies of a batch are executed once, to save time */
    if (waiting == PENDING)
        abort();
    pending[waiting].to = to;
    pending[waiting].from = from;
    pending[waiting++].size = size;
}

static void wait_until(int64_t at)
{
    for (int i = 0; i < waiting; i++)
        memcpy(pending[i].to, pending[i].from, pending[i].size);
    waiting = 0;
    while (now() < at)
        usleep(10);
}

int fake_cuda_count(const char *what)
{
    static const char *const kinds[] = {"", "streams", "events", "modules", "functions", "allocations", "pinned"};
    int count = 0;
    if (!strcmp(what, "retained"))
        return retained;
    if (!strcmp(what, "pushed"))
        return depth;
    if (!strcmp(what, "launches"))
        return launches;
    if (!strcmp(what, "priority"))
        return priority;
    for (int kind = STREAM; kind <= PINNED; kind++)
        if (!strcmp(what, kinds[kind])) {
            for (int i = 0; i < THINGS; i++)
                count += (int)things[i].kind == kind;
            return count;
        }
    return *calls_of(what);
}

int cuInit(unsigned flags)
{
    int answer = scripted(__func__);
    initialized |= answer == OK && !flags;
    return answer;
}

int cuGetErrorName(int code, const char **name)
{
    switch (code) {
    case INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
    case OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case 34: *name = "CUDA_ERROR_STUB_LIBRARY"; break;
    case 100: *name = "CUDA_ERROR_NO_DEVICE"; break;
    case INVALID_DEVICE: *name = "CUDA_ERROR_INVALID_DEVICE"; break;
    case INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; break;
    case INVALID_HANDLE: *name = "CUDA_ERROR_INVALID_HANDLE"; break;
    case ILLEGAL_ADDRESS: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; break;
    case 803: *name = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"; break;
    case 804: *name = "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"; break;
    default: *name = NULL; return INVALID_VALUE;
    }
    return OK;
}

int cuDriverGetVersion(int *version)
{
    *version = (int)given("version", 12040);
    return scripted(__func__);
}

int cuDeviceGet(int *device, int ordinal)
{
    ASK();
    *device = ordinal;
    return ordinal == 0 ? OK : INVALID_DEVICE;
}

int cuDeviceGetName(char *name, int length, int device)
{
    ASK();
    if (length <= 0 || device != 0)
        return INVALID_VALUE;
    snprintf(name, (size_t)length, "Stand-in GPU");
    return OK;
}

int cuDeviceGetPCIBusId(char *id, int length, int device)
{
    ASK();
    if (length < 13 || device != 0)
        return INVALID_VALUE;
    snprintf(id, (size_t)length, "0000:41:00.0");
    return OK;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    ASK();
    if (attribute != 16 || device != 0)
        return INVALID_VALUE;
    *value = 4;
    return OK;
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    ASK();
    if (device != 0)
        return INVALID_DEVICE;
    *flags = 0;
    *active = retained > 0;
    return OK;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    ASK();
    if (device != 0)
        return INVALID_DEVICE;
    retained++;
    *context = &the_context;
    return OK;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    ASK();
    if (device != 0 || !retained)
        return INVALID_CONTEXT;
    retained--;
    return OK;
}

int cuCtxPushCurrent_v2(void *context)
{
    ASK();
    if (context != HOSTS_OWN && (context != &the_context || !retained))
        return INVALID_CONTEXT;
    stack[depth++] = context;
    return OK;
}

int cuCtxPopCurrent_v2(void **context)
{
    int answer = scripted(__func__);
    if (!depth)
        return INVALID_CONTEXT;
    *context = stack[--depth];
    return answer ? answer : sticky;
}

int cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    ASK_IN_CONTEXT();
    *least = 3;
    if (greatest) // both pointers may be NULL
        *greatest = -5;
    return OK;
}

int cuStreamCreateWithPriority(void **stream, unsigned flags, int wanted)
{
    ASK_IN_CONTEXT();
    if (flags != 1) /* such a stream would wait for the host's work on the default stream */
        return INVALID_VALUE;
    priority = wanted;
    *stream = make(STREAM);
    return OK;
}

int cuStreamSynchronize(void *handle)
{
    struct thing *stream = alive(handle, STREAM);
    ASK_IN_CONTEXT();
    if (!stream)
        return INVALID_HANDLE;
    wait_until(stream->at);
    return OK;
}

static int destroy(void *handle, enum kind kind)
{
    struct thing *found = alive(handle, kind);
    if (!found)
        return INVALID_HANDLE;
    if (kind == MODULE)
        for (int i = 0; i < THINGS; i++)
            if (things[i].kind == FUNCTION && things[i].memory == (char *)found)
                things[i].kind = NONE;
    found->kind = NONE;
    return OK;
}

int cuStreamDestroy_v2(void *stream)
{
    ASK_IN_CONTEXT();
    return destroy(stream, STREAM);
}

int cuEventCreate(void **event, unsigned flags)
{
    ASK_IN_CONTEXT();
    if (flags) /* 2 disables timing */
        return INVALID_VALUE;
    *event = make(EVENT);
    return OK;
}

int cuEventDestroy_v2(void *event)
{
    ASK_IN_CONTEXT();
    return destroy(event, EVENT);
}

int cuEventRecord(void *handle, void *on)
{
    struct thing *event = alive(handle, EVENT), *stream = alive(on, STREAM);
    ASK_IN_CONTEXT();
    if (!event || !stream)
        return INVALID_HANDLE;
    enqueue(stream, takes("event", 0));
    event->at = stream->at;
    event->recorded = 1;
    return OK;
}

int cuEventSynchronize(void *handle)
{
    struct thing *event = alive(handle, EVENT);
    ASK_IN_CONTEXT();
    if (!event || !event->recorded)
        return INVALID_HANDLE;
    wait_until(event->at);
    return OK;
}

int cuEventElapsedTime(float *milliseconds, void *from, void *to)
{
    struct thing *start = alive(from, EVENT), *stop = alive(to, EVENT);
    ASK_IN_CONTEXT();
    if (!start || !stop || !start->recorded || !stop->recorded)
        return INVALID_HANDLE;
    if (start->at > now() || stop->at > now())
        return NOT_READY;
    *milliseconds = (float)((double)(stop->at - start->at) / 1e6);
    return OK;
}

static const struct { const char *name; int parameters; double microseconds; } kernels[] = {
    {"empty", 0, 2}, {"fill", 1, 50}, {"copy", 2, 45}, {"fma", 4, 150},
};
static const char *module_text;

int cuModuleLoadData(void **module, const char *text)
{
    ASK_IN_CONTEXT();
    if (!strstr(text, ".version ") || !strstr(text, ".target sm_") || !strstr(text, ".address_size 64"))
        return INVALID_IMAGE;
    module_text = strdup(text);
    *module = make(MODULE);
    return OK;
}

int cuModuleUnload(void *module)
{
    ASK_IN_CONTEXT();
    return destroy(module, MODULE);
}

int cuModuleGetFunction(void **function, void *module, const char *name)
{
    char entry[64];
    ASK_IN_CONTEXT();
    if (!alive(module, MODULE))
        return INVALID_HANDLE;
    snprintf(entry, sizeof entry, ".entry %s(", name);
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (!strcmp(kernels[i].name, name)) {
            const char *at = strstr(module_text, entry), *end = at ? strchr(at, ')') : NULL;
            int parameters = 0;
            for (; at && at < end; at++)
                parameters += !strncmp(at, ".param", 6);
            if (!end || parameters != kernels[i].parameters)
                return NOT_FOUND;
            struct thing *made = make(FUNCTION);
            made->name = kernels[i].name;
            made->memory = module;
            *function = made;
            return OK;
        }
    return NOT_FOUND;
}

/* Graphs of one captured kernel, `fill`. */
static void *capturing;
static struct { uint32_t *to; size_t threads; } captured;
static char the_graph, the_executable;

void (*fake_cupti_kernel)(void); /* set by the stand-in for CUPTI, while it records */

int cuStreamBeginCapture_v2(void *on, int mode)
{
    ASK_IN_CONTEXT();
    if (!alive(on, STREAM) || capturing)
        return INVALID_HANDLE;
    capturing = on;
    return mode > 2 ? INVALID_VALUE : OK;
}

int cuStreamEndCapture(void *on, void **graph)
{
    ASK_IN_CONTEXT();
    if (on != capturing)
        return INVALID_HANDLE;
    capturing = NULL;
    *graph = &the_graph;
    return OK;
}

int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags)
{
    ASK_IN_CONTEXT();
    *executable = &the_executable;
    return graph != &the_graph || flags ? INVALID_VALUE : OK;
}

int cuGraphLaunch(void *executable, void *on)
{
    struct thing *stream = alive(on, STREAM);
    ASK_IN_CONTEXT();
    if (!stream || executable != &the_executable)
        return INVALID_HANDLE;
    if (!memory(captured.to, captured.threads * 4))
        return sticky = ILLEGAL_ADDRESS;
    enqueue(stream, takes("fill", 50));
    for (size_t i = 0; i < captured.threads; i++)
        captured.to[i] = (uint32_t)i;
    return OK;
}

int cuGraphExecDestroy(void *executable)
{
    ASK_IN_CONTEXT();
    return executable == &the_executable ? OK : INVALID_HANDLE;
}

int cuGraphDestroy(void *graph)
{
    ASK_IN_CONTEXT();
    return graph == &the_graph ? OK : INVALID_HANDLE;
}

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *on, void **parameters, void **extra)
{
    struct thing *kernel = alive(function, FUNCTION), *stream = alive(on, STREAM);
    size_t threads = (size_t)gx * bx;
    ASK_IN_CONTEXT();
    if (!kernel || !stream)
        return INVALID_HANDLE;
    if (!gx || gy != 1 || gz != 1 || !bx || bx > 1024 || by != 1 || bz != 1 || shared || !parameters || extra)
        return INVALID_VALUE;
    if (capturing) { /* kept for the graph instead of executed */
        if (on != capturing || strcmp(kernel->name, "fill"))
            return NOT_SUPPORTED;
        captured.to = *(uint32_t **)parameters[0];
        captured.threads = threads;
        return OK;
    }
    launches++;
    if (fake_cupti_kernel)
        fake_cupti_kernel();
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (!strcmp(kernels[i].name, kernel->name))
            enqueue(stream, takes(kernel->name, kernels[i].microseconds));
    if (!strcmp(kernel->name, "fill")) {
        uint32_t *to = *(uint32_t **)parameters[0];
        if (!memory(to, threads * 4))
            return sticky = ILLEGAL_ADDRESS;
        for (size_t i = 0; i < threads; i++)
            to[i] = (uint32_t)i;
    } else if (!strcmp(kernel->name, "copy")) {
        char *to = *(char **)parameters[0], *from = *(char **)parameters[1];
        if (!memory(to, threads * 16) || !memory(from, threads * 16))
            return sticky = ILLEGAL_ADDRESS;
        copy_later(to, from, threads * 16);
    } else if (!strcmp(kernel->name, "fma")) {
        float *out = *(float **)parameters[0], b = *(float *)parameters[3];
        unsigned rounds = *(unsigned *)parameters[1];
        if (!memory(out, threads * 4) || *(float *)parameters[2] != 1)
            return sticky = ILLEGAL_ADDRESS;
        for (size_t i = 0; i < threads; i++)
            out[i] = 8 * (float)(i % bx) + 28 * b + 64 * b * (float)rounds;
    }
    return OK;
}

static int allocate(enum kind kind, size_t size, char **address)
{
    struct thing *made = make(kind);
    if (posix_memalign((void **)&made->memory, 256, size))
        return OUT_OF_MEMORY;
    memset(made->memory, 0xEE, size);
    made->size = size;
    *address = made->memory;
    return OK;
}

static int release(enum kind kind, char *address)
{
    struct thing *found = memory(address, 1);
    if (!found || found->kind != kind || found->memory != address)
        return INVALID_VALUE;
    free(found->memory);
    found->kind = NONE;
    return OK;
}

int cuMemAlloc_v2(char **address, size_t size)
{
    ASK_IN_CONTEXT();
    return allocate(DEVICE_MEMORY, size, address);
}

int cuMemFree_v2(char *address)
{
    ASK_IN_CONTEXT();
    return release(DEVICE_MEMORY, address);
}

int cuMemHostAlloc(char **address, size_t size, unsigned flags)
{
    ASK_IN_CONTEXT();
    return flags ? INVALID_VALUE : allocate(PINNED, size, address);
}

int cuMemFreeHost(char *address)
{
    ASK_IN_CONTEXT();
    return release(PINNED, address);
}

int cuMemcpyHtoDAsync_v2(char *to, const void *from, size_t size, void *on)
{
    struct thing *device = memory(to, size), *stream = alive(on, STREAM);
    ASK_IN_CONTEXT();
    if (!stream)
        return INVALID_HANDLE;
    if (!device || device->kind != DEVICE_MEMORY)
        return INVALID_VALUE;
    enqueue(stream, takes("h2d", 80));
    copy_later(to, from, size);
    return OK;
}

int cuMemcpyDtoHAsync_v2(void *to, const char *from, size_t size, void *on)
{
    struct thing *device = memory(from, size), *stream = alive(on, STREAM);
    ASK_IN_CONTEXT();
    if (!stream)
        return INVALID_HANDLE;
    if (!device || device->kind != DEVICE_MEMORY)
        return INVALID_VALUE;
    enqueue(stream, takes("d2h", 90));
    copy_later(to, from, size);
    return OK;
}
