/* A file system without locks, as seen by a process: NFS whose server has no lock manager. */
#include <errno.h>

int flock(int descriptor, int operation) {
    (void)descriptor;
    (void)operation;
    errno = ENOLCK;
    return -1;
}
