/* A small libnvidia-ml.so.1 for the tests: two devices, three where one stalls, or eight, with values that tell who is read.

   FAKE_NVML_COUNT=<n>  there are n devices, at most 8
   FAKE_NVML_LOST=<n>   device n is lost
   FAKE_NVML_STALL=<n>  reading device n never ends
   FAKE_NVML_XID=<x>    device 1 reports XID x once
   FAKE_NVML_GPM=1      device 0 has GPM
   FAKE_NVML_HOT=<n>    device n is held back by heat all the time
   FAKE_NVML_IDLE=<n>   device n's clock rests
   FAKE_NVML_SLOT=<n>   device n sits in a slot of half the width
   FAKE_NVML_CAP=<n>    device n has a lowered power limit
   FAKE_NVML_LINK=<n>   one of device n's NVLinks is down
   FAKE_NVML_LINKS=<k>  each device has k NVLinks, two unless this is set
   FAKE_NVML_PAIRED=1   the links of devices 2k and 2k+1 lead to each other, else all lead to a switch
   FAKE_NVML_BRIDGED=<n> only devices 0 to n-1 have a bridge, of four links
   FAKE_NVML_MIG=1      all devices are cut into slices, which switches their links off
   FAKE_NVML_REMAP=<n>  a row of device n could not be remapped
   FAKE_NVML_PENDING=<n> a row of device n is to be remapped
   FAKE_NVML_ECC=<n>    device n has had two uncorrectable errors
   FAKE_NVML_GONE=<n>   device n has fallen off the bus: it has no handle
   FAKE_NVML_HIDDEN=<n> this process may not open device n
   FAKE_NVML_PID=<pid>  that process computes on all devices, instead of 4321
   FAKE_NVML_NAME=<text> the devices' model
   FAKE_NVML_OLD=1      functions and fields of newer drivers are missing or not supported
*/
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, INSUFFICIENT = 7, TIMEOUT = 10, LOST = 15, NOT_FOUND = 6 };

typedef struct { int number; } Device;
static Device devices[] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};

static int setting(const char *name) {
    const char *text = getenv(name);
    return text ? atoi(text) : -1;
}

static int check(Device *device) {
    if (setting("FAKE_NVML_STALL") == device->number)
        for (;;) pause();
    return setting("FAKE_NVML_LOST") == device->number ? LOST : OK;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return OK; }
int nvmlInit_v2(void) { return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == LOST ? "GPU is lost" : "some error"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    int wanted = setting("FAKE_NVML_COUNT");
    *count = wanted >= 0 ? wanted : setting("FAKE_NVML_STALL") >= 0 ? 3 : 2;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned number, Device **handle) {
    if (number > 7) return INVALID;
    *handle = &devices[number];
    if (setting("FAKE_NVML_HIDDEN") == (int)number) return NO_PERMISSION;
    return setting("FAKE_NVML_GONE") == (int)number ? LOST : OK;
}

int nvmlDeviceGetName(Device *device, char *name, unsigned length) {
    const char *wanted = getenv("FAKE_NVML_NAME");
    snprintf(name, length, "%s", wanted ? wanted : "NVIDIA H100 80GB HBM3");
    return check(device);
}

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char address[32]; } PciInfo;

int nvmlDeviceGetPciInfo_v3(Device *device, PciInfo *info) {
    snprintf(info->address, sizeof info->address, "00000000:%02X:00.0", device->number);
    return check(device);
}

int nvmlDeviceGetMigMode(Device *device, unsigned *now, unsigned *pending) {
    *now = *pending = setting("FAKE_NVML_MIG") > 0;
    return check(device);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device **handle) {
    if (strcmp(uuid, "GPU-one") == 0) {
        *handle = &devices[1];
        return OK;
    }
    if (strncmp(uuid, "GPU-", 4) || uuid[4] < '0' || uuid[4] > '7' || uuid[5]) return NOT_FOUND;
    *handle = &devices[uuid[4] - '0'];
    return OK;
}

int nvmlDeviceGetUUID(Device *device, char *uuid, unsigned length) {
    snprintf(uuid, length, "GPU-%d", device->number);
    return check(device);
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *address, Device **handle) {
    *handle = &devices[atoi(address + 5)]; /* 0000:0N:00.0 */
    return setting("FAKE_NVML_GONE") == (*handle)->number ? LOST : OK;
}

int nvmlDeviceGetUtilizationRates(Device *device, unsigned rates[2]) {
    rates[0] = 50 + device->number;
    rates[1] = 20;
    return check(device);
}

int nvmlDeviceGetMemoryInfo(Device *device, unsigned long long memory[3]) {
    memory[0] = 80ULL << 30;
    memory[2] = 20ULL << 30;
    memory[1] = memory[0] - memory[2];
    return check(device);
}

int nvmlDeviceGetPowerUsage(Device *device, unsigned *milliwatts) {
    *milliwatts = 300500 + device->number;
    return check(device);
}

int nvmlDeviceGetTemperature(Device *device, int sensor, unsigned *celsius) {
    (void)sensor;
    *celsius = 60;
    return check(device);
}

int nvmlDeviceGetTemperatureV(Device *device, int temperature[3]) {
    temperature[2] = 60;
    return check(device);
}

int nvmlDeviceGetClockInfo(Device *device, int clock, unsigned *mhz) {
    int idle = setting("FAKE_NVML_IDLE") == device->number;
    *mhz = clock == 1 ? (idle ? 345 : 1980) : 2619;
    return check(device);
}

int nvmlDeviceGetCurrentClocksEventReasons(Device *device, unsigned long long *mask) {
    if (setting("FAKE_NVML_OLD") > 0) return NOT_SUPPORTED;
    *mask = 0x4;
    return check(device);
}

int nvmlDeviceGetMaxClockInfo(Device *device, int clock, unsigned *mhz) {
    *mhz = clock == 1 ? 1980 : 2619;
    return check(device);
}

int nvmlDeviceGetEnforcedPowerLimit(Device *device, unsigned *milliwatts) {
    *milliwatts = setting("FAKE_NVML_CAP") == device->number ? 400000 : 700000;
    return check(device);
}

int nvmlDeviceGetPowerManagementDefaultLimit(Device *device, unsigned *milliwatts) {
    *milliwatts = 700000;
    return check(device);
}

int nvmlDeviceGetCurrPcieLinkWidth(Device *device, unsigned *lanes) {
    *lanes = setting("FAKE_NVML_SLOT") == device->number ? 8 : 16;
    return check(device);
}

int nvmlDeviceGetMaxPcieLinkWidth(Device *device, unsigned *lanes) { *lanes = 16; return check(device); }

int nvmlDeviceGetNvLinkState(Device *device, unsigned link, unsigned *active) {
    int links = setting("FAKE_NVML_LINKS"), bridged = setting("FAKE_NVML_BRIDGED");
    if ((int)link >= (links < 0 ? 2 : links)) return INVALID;
    *active = !(setting("FAKE_NVML_LINK") == device->number && link == 1);
    if (setting("FAKE_NVML_MIG") > 0 || (bridged >= 0 && (device->number >= bridged || link > 3))) *active = 0;
    return check(device);
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device *device, unsigned link, PciInfo *info) {
    (void)link;
    snprintf(info->address, sizeof info->address, "00000000:%02X:00.0", setting("FAKE_NVML_PAIRED") > 0 ? device->number ^ 1 : 0xC0);
    return check(device);
}

int nvmlDeviceGetP2PStatus(Device *one, Device *other, int what, int *status) {
    (void)other; (void)what;
    *status = setting("FAKE_NVML_PAIRED") > 0 || setting("FAKE_NVML_LINKS") == 0; /* no path by a switch */
    return check(one);
}

int nvmlDeviceGetTopologyCommonAncestor(Device *one, Device *other, int *level) {
    (void)other;
    *level = 50;
    return check(one);
}

static unsigned long long nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ULL + now.tv_nsec;
}

typedef struct {
    uint32_t field, scope;
    int64_t timestamp, latency;
    int type, code;
    union { double d; unsigned u; unsigned long long ull; } value;
} Field;

/* A counter that devices only have if the setting is there, and that is not 0 on the device which it names. */
static void count_if(Field *field, const char *name, Device *device, unsigned count) {
    if (setting(name) < 0) field->code = NOT_SUPPORTED;
    else field->value.ull = setting(name) == device->number ? count : 0;
}

int nvmlDeviceGetFieldValues(Device *device, int count, Field *fields) {
    for (int i = 0; i < count; i++) {
        fields[i].code = OK;
        fields[i].type = 3;
        switch (fields[i].field) {
        case 83: fields[i].value.ull = 5000; break;
        case 82: fields[i].type = 1; fields[i].value.u = 70; break;
        case 138: fields[i].value.ull = fields[i].scope == 0xFFFFFFFF ? 3 : 0; break;
        case 4: count_if(&fields[i], "FAKE_NVML_ECC", device, 2); break;
        case 144: count_if(&fields[i], "FAKE_NVML_PENDING", device, 1); break;
        case 145: count_if(&fields[i], "FAKE_NVML_REMAP", device, 1); break;
        case 269: fields[i].value.ull = setting("FAKE_NVML_HOT") == device->number ? nanoseconds() : 0; break;
        default: fields[i].code = NOT_SUPPORTED;
        }
        if (setting("FAKE_NVML_OLD") > 0) fields[i].code = NOT_SUPPORTED;
    }
    return check(device);
}

typedef struct { unsigned version, supported; } GpmSupport;
typedef struct {
    unsigned id;
    int code;
    double value;
    char *names[3];
} GpmMetric;
typedef struct {
    unsigned version, count;
    int *sample1, *sample2;
    GpmMetric metrics[];
} GpmGet;

static int samples_taken;

int nvmlGpmQueryDeviceSupport(Device *device, GpmSupport *support) {
    support->supported = setting("FAKE_NVML_GPM") > 0 && device->number == 0;
    return OK;
}
int nvmlGpmSampleAlloc(int **sample) { *sample = calloc(1, sizeof **sample); return OK; }
int nvmlGpmSampleGet(Device *device, int *sample) { *sample = ++samples_taken; return check(device); }
int nvmlGpmMetricsGet(GpmGet *get) {
    for (unsigned i = 0; i < get->count; i++) {
        get->metrics[i].code = get->metrics[i].id == 10 ? NOT_SUPPORTED : OK;
        get->metrics[i].value = 100 * (*get->sample2 - *get->sample1) + get->metrics[i].id;
    }
    return OK;
}

typedef struct { Device *device; unsigned long long type, data; unsigned instance, compute; } Event;

typedef struct { Device *device; int told; } Set;
static Set sets[256];
static int set_count;

int nvmlEventSetCreate(void **set) { *set = &sets[__atomic_fetch_add(&set_count, 1, __ATOMIC_SEQ_CST)]; return OK; }
int nvmlDeviceRegisterEvents(Device *device, unsigned long long types, void *set) {
    (void)types;
    ((Set *)set)->device = device;
    return OK;
}
int nvmlEventSetWait_v2(void *set, Event *event, unsigned milliseconds) {
    Set *asked = set;
    if (setting("FAKE_NVML_XID") < 0 || asked->device != &devices[1] || asked->told++) {
        usleep(milliseconds * 1000);
        return TIMEOUT;
    }
    event->device = asked->device;
    event->data = setting("FAKE_NVML_XID");
    return OK;
}

typedef struct { unsigned pid; unsigned long long memory; unsigned instance, compute; } Process;

int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count, Process *processes) {
    if (!processes) { *count = 1; return INSUFFICIENT; }
    *count = 1;
    processes[0].pid = setting("FAKE_NVML_PID") > 0 ? setting("FAKE_NVML_PID") : 4321;
    processes[0].memory = 1 << 20;
    return check(device);
}
