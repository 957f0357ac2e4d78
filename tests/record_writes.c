/* Preloaded into a process: logs every write that changes a file, in the order of the calls.
 *
 * One entry: the name of the call (8 bytes), offset or length, size of the path, size of the bytes
 * (8 bytes each, native order), path, bytes. What Python writes to a file called `marks` is logged
 * like the rest: it tells what was reported as stored by then. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static int log_fd(void) {
  static int fd = -1;
  if (fd < 0) fd = open(getenv("RECORD_WRITES"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  return fd;
}

static void put(const char *call, uint64_t number, const char *path, const struct iovec *iov,
                int count) {
  struct { char call[8]; uint64_t number, path, bytes; } head = {{0}, number, strlen(path), 0};
  strncpy(head.call, call, 8);
  for (int i = 0; i < count; i++) head.bytes += iov[i].iov_len;
  struct iovec all[2] = {{&head, sizeof head}, {(void *)path, head.path}};
  if (writev(log_fd(), all, 2) < 0) abort();
  for (int i = 0; i < count; i++) {
    const char *from = iov[i].iov_base;
    size_t left = iov[i].iov_len;
    while (left > 0) {
      ssize_t n = write(log_fd(), from, left);
      if (n < 0) abort();
      from += n;
      left -= n;
    }
  }
}

static void put_fd(const char *call, uint64_t number, int fd, const struct iovec *iov, int count) {
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return;
  path[n] = 0;
  put(call, number, path, iov, count);
}

#define NEXT(result, name, ...) \
  static result (*next)(__VA_ARGS__); \
  if (!next) next = dlsym(RTLD_NEXT, name);

#define PWRITE(name) \
  ssize_t name(int fd, const void *bytes, size_t size, off_t offset) { \
    NEXT(ssize_t, #name, int, const void *, size_t, off_t) \
    ssize_t done = next(fd, bytes, size, offset); \
    struct iovec iov = {(void *)bytes, done < 0 ? 0 : done}; \
    if (done > 0) put_fd("write", offset, fd, &iov, 1); \
    return done; \
  }
PWRITE(pwrite)
PWRITE(pwrite64)

/* The whole of it or nothing: the tests write little, and a short write would be logged wrong. */
#define PWRITEV(name) \
  ssize_t name(int fd, const struct iovec *iov, int count, off_t offset) { \
    NEXT(ssize_t, #name, int, const struct iovec *, int, off_t) \
    ssize_t done = next(fd, iov, count, offset), size = 0; \
    for (int i = 0; i < count; i++) size += iov[i].iov_len; \
    if (done >= 0 && done != size) abort(); \
    if (done > 0) put_fd("write", offset, fd, iov, count); \
    return done; \
  }
PWRITEV(pwritev)
PWRITEV(pwritev64)

#define FTRUNCATE(name) \
  int name(int fd, off_t length) { \
    NEXT(int, #name, int, off_t) \
    int done = next(fd, length); \
    if (done == 0) put_fd("length", length, fd, NULL, 0); \
    return done; \
  }
FTRUNCATE(ftruncate)
FTRUNCATE(ftruncate64)

/* Only ever called to make a file longer. */
#define FALLOCATE(name) \
  int name(int fd, int mode, off_t offset, off_t length) { \
    NEXT(int, #name, int, int, off_t, off_t) \
    int done = next(fd, mode, offset, length); \
    if (done == 0) put_fd("length", offset + length, fd, NULL, 0); \
    return done; \
  }
FALLOCATE(fallocate)
FALLOCATE(fallocate64)

int rename(const char *from, const char *to) {
  NEXT(int, "rename", const char *, const char *)
  int done = next(from, to);
  struct iovec iov = {(void *)to, strlen(to)};
  if (done == 0) put("rename", 0, from, &iov, 1);
  return done;
}

int unlink(const char *path) {
  NEXT(int, "unlink", const char *)
  int done = next(path);
  if (done == 0) put("unlink", 0, path, NULL, 0);
  return done;
}
