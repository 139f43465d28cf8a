/* A stand-in for libcupti.so. While enabled, it records the kernels that the stand-in for libcuda.so.1 launches.
 *
 * $FAKE_CUPTI is the error code of cuptiActivityEnable (35: insufficient privileges), or `lost` to record nothing.
 * Records are passed as by CUPTI: buffers are requested, filled, returned, and read one by one.
 * Build: cc -shared -fPIC -o libcupti.so cupti.c -L. -l:libcuda.so.1
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { OK, INVALID_KIND = 21, MAX_LIMIT_REACHED = 12, CONCURRENT_KERNEL = 10 };
struct record { uint32_t kind; uint64_t rest[15]; };

typedef void (*requested)(uint8_t **buffer, size_t *size, size_t *most);
typedef void (*completed)(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);

extern void (*fake_cupti_kernel)(void);
static requested request;
static completed complete;
static unsigned count;

static void one(void)
{
    count++;
}

int cuptiActivityRegisterCallbacks(requested r, completed c)
{
    request = r;
    complete = c;
    return OK;
}

int cuptiActivityEnable(int kind)
{
    const char *given = getenv("FAKE_CUPTI");
    if (kind != CONCURRENT_KERNEL)
        return INVALID_KIND;
    if (given && atoi(given))
        return atoi(given);
    if (!given || strcmp(given, "lost"))
        fake_cupti_kernel = one;
    return OK;
}

int cuptiActivityDisable(int kind)
{
    (void)kind;
    fake_cupti_kernel = NULL;
    return OK;
}

int cuptiActivityFlushAll(uint32_t flag)
{
    uint8_t *buffer;
    size_t size, most, i;
    (void)flag;
    request(&buffer, &size, &most);
    for (i = 0; i < count; i++)
        ((struct record *)buffer)[i] = (struct record){.kind = CONCURRENT_KERNEL};
    complete(NULL, 0, buffer, size, count * sizeof(struct record));
    return OK;
}

int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, struct record **record)
{
    struct record *next = *record ? *record + 1 : (struct record *)buffer;
    if ((uint8_t *)next >= buffer + valid)
        return MAX_LIMIT_REACHED;
    *record = next;
    return OK;
}

int cuptiGetResultString(int code, const char **text)
{
    *text = code == 35 ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES" : "CUPTI_ERROR_UNKNOWN";
    return OK;
}
