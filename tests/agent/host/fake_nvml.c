/* Stands in for libnvidia-ml.so.1. What it answers is read at every call from the file that FAKE_NVML names:
     gpu UUID|NAME|BUS|MAJOR|MINOR|MIG|SM|MEM|MILLIWATT|CELSIUS|REASONS     slice PARENT|UUID|NAME
     compute UUID PID      graphics UUID PID      init CODE      lost UUID      hang      fails CODE (of sensors) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST 16
typedef struct { char uuid[96], name[96], bus[32], parent[96]; int major, minor, mig, lost;
                 unsigned sm, mem, mw, celsius; unsigned long long reasons; } Unit;
typedef struct { unsigned pid; unsigned long long memory; unsigned gi, ci; } Process;
static Unit units[MOST];
static int unit_count, init_code, fails;
static struct { char uuid[96]; unsigned pid; int graphics; } running[256];
static int running_count;

static void load(void) {
    char line[512];
    FILE *file = fopen(getenv("FAKE_NVML"), "r");
    unit_count = running_count = init_code = fails = 0;
    if (!file) return;
    while (fgets(line, sizeof line, file)) {
        Unit *u = &units[unit_count];
        memset(u, 0, sizeof *u);
        if (sscanf(line, "gpu %95[^|]|%95[^|]|%31[^|]|%d|%d|%d|%u|%u|%u|%u|%llx", u->uuid, u->name, u->bus, &u->major,
                   &u->minor, &u->mig, &u->sm, &u->mem, &u->mw, &u->celsius, &u->reasons) == 11) { unit_count++; continue; }
        if (sscanf(line, "slice %95[^|]|%95[^|]|%95[^\n]", u->parent, u->uuid, u->name) == 3) { unit_count++; continue; }
        char uuid[96]; unsigned pid;
        if (sscanf(line, "compute %95s %u", uuid, &pid) == 2 || sscanf(line, "graphics %95s %u", uuid, &pid) == 2) {
            strcpy(running[running_count].uuid, uuid);
            running[running_count].pid = pid;
            running[running_count++].graphics = line[0] == 'g';
        } else if (sscanf(line, "lost %95s", uuid) == 1) {
            for (int i = 0; i < unit_count; i++) if (!strcmp(units[i].uuid, uuid)) units[i].lost = 1;
        } else if (!strncmp(line, "hang", 4)) { for (;;) sleep(1000); }
        else if (!sscanf(line, "fails %d", &fails)) sscanf(line, "init %d", &init_code);
    }
    fclose(file);
}

#define HANDLE(i) ((void *)(long)((i) + 1))
static Unit *unit(void *handle) { load(); return &units[(long)handle - 1]; }
static int text(char *out, unsigned size, const char *value) { snprintf(out, size, "%s", value); return 0; }

const char *nvmlErrorString(int code) { return code == 9 ? "Driver Not Loaded" : code == 15 ? "GPU is lost" : "Some Error"; }
int nvmlInit_v2(void) { load(); return init_code; }
int nvmlDeviceGetCount_v2(unsigned *count) {
    load(); *count = 0;
    for (int i = 0; i < unit_count; i++) *count += !units[i].parent[0];
    return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    load();
    for (int i = 0; i < unit_count; i++)
        if (!units[i].parent[0] && index-- == 0) { *handle = HANDLE(i); return units[i].lost ? 15 : 0; }
    return 2;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    load();
    for (int i = 0; i < unit_count; i++) if (!strcmp(units[i].uuid, uuid)) { *handle = HANDLE(i); return 0; }
    return 6;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *slice, void **handle) {
    Unit *u = unit(slice);
    return u->parent[0] ? nvmlDeviceGetHandleByUUID(u->parent, handle) : 2;
}
int nvmlDeviceGetMigMode(void *handle, unsigned *now, unsigned *pending) { *now = *pending = unit(handle)->mig; return 0; }
int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) { (void)handle; *count = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **slice) {
    Unit *parent = unit(handle);
    for (int i = 0; i < unit_count; i++)
        if (!strcmp(units[i].parent, parent->uuid) && index-- == 0) { *slice = HANDLE(i); return 0; }
    return 6;
}
int nvmlDeviceGetUUID(void *handle, char *out, unsigned size) { return text(out, size, unit(handle)->uuid); }
int nvmlDeviceGetName(void *handle, char *out, unsigned size) { return text(out, size, unit(handle)->name); }
int nvmlDeviceGetPciInfo_v3(void *handle, char *info) { strcpy(info + 36, unit(handle)->bus); return 0; }
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    Unit *u = unit(handle); *major = u->major; *minor = u->minor; return 0;
}
/* How often a process list was asked for, so that a test can wait until it was looked at again. */
static int looks;
int fake_looks(void) { return looks; }
int nvmlDeviceGetClockInfo(void *handle, int kind, unsigned *mhz) {
    Unit *u = unit(handle);
    FILE *seen = kind != 2 && getenv("FAKE_NVML_LOOKS") ? fopen(getenv("FAKE_NVML_LOOKS"), "a") : NULL;
    if (seen) { fputc('.', seen); fclose(seen); }
    *mhz = kind == 2 ? u->mem : u->sm;
    return u->parent[0] ? 3 : fails;
}
int nvmlDeviceGetPowerUsage(void *handle, unsigned *mw) { *mw = unit(handle)->mw; return fails; }
int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *celsius) { (void)sensor; *celsius = unit(handle)->celsius; return 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *bits) { *bits = unit(handle)->reasons; return fails; }
static int list(void *handle, unsigned *count, Process *out, int graphics) {
    Unit *u = unit(handle);
    unsigned found = 0, room = *count;
    looks++;
    for (int i = 0; i < running_count; i++)
        if (!strcmp(running[i].uuid, u->uuid) && running[i].graphics == graphics && found++ < room) out[found - 1].pid = running[i].pid;
    *count = found;
    return found > room ? 7 : 0;
}
int nvmlDeviceGetComputeRunningProcesses_v2(void *handle, unsigned *count, Process *out) { return list(handle, count, out, 0); }
int nvmlDeviceGetGraphicsRunningProcesses_v2(void *handle, unsigned *count, Process *out) { return list(handle, count, out, 1); }
