// A bad wire between two network namespaces: a TAP device in each, and between them loss, delay, reordering and cuts.
// Where the kernel has no netem, and with cuts in one direction. Commands come on standard input, one a line:
//
//     LOSS_PERCENT DELAY_MS JITTER_MS CUT_A_TO_B CUT_B_TO_A
//
// usage: wire NAMESPACE_A NAMESPACE_B DEVICE
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define QUEUE 8192
#define FRAME 65536

struct frame {
    long due;
    int to, len;
    unsigned char *bytes;
};

static struct frame queue[QUEUE];
static int queued;

static long now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static int tap(const char *space, const char *device) {
    char path[256];
    snprintf(path, sizeof path, "/var/run/netns/%s", space);
    int ns = open(path, O_RDONLY | O_CLOEXEC);
    if (ns < 0 || setns(ns, CLONE_NEWNET)) { perror(path); exit(1); }
    close(ns);
    int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
    struct ifreq request = { .ifr_flags = IFF_TAP | IFF_NO_PI };
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", device);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &request)) { perror("tun"); exit(1); }
    return fd;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    int fds[2] = { tap(argv[1], argv[3]), tap(argv[2], argv[3]) };
    int loss = 0, delay = 0, jitter = 0, cut[2] = { 0, 0 };
    static unsigned char frame[FRAME];
    static char line[256];
    setvbuf(stdin, NULL, _IONBF, 0);
    puts("ready");
    fflush(stdout);
    for (;;) {
        long now = now_ms(), wait = 1000;
        for (int i = 0; i < queued;) {
            if (queue[i].due <= now) {
                if (write(fds[queue[i].to], queue[i].bytes, queue[i].len) < 0) { /* as if lost */ }
                free(queue[i].bytes);
                queue[i] = queue[--queued];
            } else {
                if (queue[i].due - now < wait) wait = queue[i].due - now;
                i++;
            }
        }
        struct pollfd polled[3] = { { fds[0], POLLIN, 0 }, { fds[1], POLLIN, 0 }, { 0, POLLIN, 0 } };
        if (poll(polled, 3, wait) < 0) continue;
        if (polled[2].revents) {
            if (!fgets(line, sizeof line, stdin)) return 0;
            sscanf(line, "%d %d %d %d %d", &loss, &delay, &jitter, &cut[0], &cut[1]);
            puts("done");
            fflush(stdout);
        }
        for (int from = 0; from < 2; from++) {
            if (!(polled[from].revents & POLLIN)) continue;
            int len = read(fds[from], frame, FRAME);
            if (len <= 0 || cut[from] || rand() % 100 < loss || queued == QUEUE) continue;
            if (!delay && !jitter) {
                if (write(fds[!from], frame, len) < 0) { /* as if lost */ }
                continue;
            }
            struct frame *slot = &queue[queued++];
            slot->due = now_ms() + delay + (jitter ? rand() % jitter : 0);
            slot->to = !from;
            slot->len = len;
            slot->bytes = malloc(len);
            memcpy(slot->bytes, frame, len);
        }
    }
}
