/* What shared buffers need of the CUDA runtime, on host memory: a handle holds the allocating process and its pointer. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int live = 0;

int cudaMalloc(void **pointer, size_t size) { *pointer = malloc(size); live++; return *pointer ? 0 : 2; }
int cudaMemset(void *pointer, int value, size_t size) { memset(pointer, value, size); return 0; }
int cudaDeviceSynchronize(void) { return 0; }
int cudaFree(void *pointer) { free(pointer); live--; return 0; }

typedef struct { char reserved[64]; } handle_t;

int cudaIpcGetMemHandle(handle_t *handle, void *pointer) {
    pid_t pid = getpid();
    memset(handle, 0, sizeof *handle);
    memcpy(handle->reserved, &pid, sizeof pid);
    memcpy(handle->reserved + 8, &pointer, sizeof pointer);
    return 0;
}

int cudaIpcOpenMemHandle(void **pointer, handle_t handle, unsigned flags) {
    pid_t pid;
    memcpy(&pid, handle.reserved, sizeof pid);
    if (flags != 1 || pid == getpid() || pid == 0) return 1; /* one's own handle cannot be opened */
    memcpy(pointer, handle.reserved + 8, sizeof *pointer);
    return 0;
}

int cudaIpcCloseMemHandle(void *pointer) { return pointer ? 0 : 1; }
const char *cudaGetErrorString(int code) { return code == 1 ? "invalid argument" : "out of memory"; }
