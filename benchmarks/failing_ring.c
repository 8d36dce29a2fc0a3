/* The toy program of `python -m benchmarks failures` as compiled code: a ring of ranks, as programs of MPI form them.
 *
 * It does what failing_training.py does with plain sockets; a rank that has lost its peer says so and ends with 1.
 */
#include <arpa/inet.h>
#include <assert.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { SAVE_EVERY = 5, FAULT_STEP = 12, STEP_US = 100000, POLL_US = 10000 };
static int rank, n_ranks;

static const char *variable(const char *name, const char *other) {
    const char *value = getenv(name);
    return value ? value : getenv(other);
}

static const char *path(const char *format, ...) {
    static char text[4096];
    va_list values;
    int length = snprintf(text, sizeof text, "%s/", getenv("TOY_FOLDER"));
    va_start(values, format);
    vsnprintf(text + length, sizeof text - length, format, values);
    va_end(values);
    return text;
}

/* Appends a line with the time to a file of this run. */
static void note(const char *file, const char *format, ...) {
    char text[256];
    struct timeval now;
    va_list values;
    gettimeofday(&now, NULL);
    int length = snprintf(text, sizeof text, "%ld.%06ld ", (long)now.tv_sec, (long)now.tv_usec);
    va_start(values, format);
    length += vsnprintf(text + length, sizeof text - length, format, values);
    va_end(values);
    text[length++] = '\n';
    int out = open(path("%s", file), O_CREAT | O_APPEND | O_WRONLY, 0644);
    if (write(out, text, length) != length) abort();
    close(out);
}

static int read_number(const char *file, const char *format) {
    int number = 0;
    FILE *in = fopen(path("%s", file), "r");
    if (!in) return 0;
    if (fscanf(in, format, &number) != 1) number = 0;
    fclose(in);
    return number;
}

static int fires(void) {
    const char *node = variable("LAGGARD_NODE", "TOY_NODE");
    if (strcmp(node, getenv("TOY_FAULTY_NODE"))) return 0;
    if (*getenv("TOY_OFTEN") == '1') return 1;
    int mark = open(path("fired-%s", node), O_CREAT | O_EXCL | O_WRONLY, 0644);
    return mark >= 0;
}

static void make_fault(void) {
    const char *action = getenv("TOY_ACTION");
    volatile int zero = 0;
    note("faults", "%s", variable("LAGGARD_NODE", "TOY_NODE"));
    if (!strcmp(action, "divides by zero")) zero = 1 / zero;
    if (!strcmp(action, "asserts")) assert(zero);
    if (!strcmp(action, "writes to null")) *(volatile char *)(long)zero = 1;
    if (!strcmp(action, "aborts")) abort();
    if (!strcmp(action, "exits")) exit(3);
    if (!strcmp(action, "stops")) pause();
    if (!strcmp(action, "loops")) for (;;) zero++;
    fprintf(stderr, "ring.c: rank %d: no such column: pressure\n", rank);
    exit(1);
}

static void lose_peer(void) {
    fprintf(stderr, "rank %d: lost its peer, aborting\n", rank);
    exit(1);
}

static int listener_of(char *file, size_t size, int launch) {
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof here;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&here, length) || listen(listener, 1)) abort();
    if (getsockname(listener, (struct sockaddr *)&here, &length)) abort();
    snprintf(file, size, "ring%d-%d", launch, rank);
    note(file, "%d", ntohs(here.sin_port));
    return listener;
}

static void form_ring(int *next, int *previous) {
    char file[64];
    struct sockaddr_in peer = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int launch = atoi(variable("LAGGARD_LAUNCH", "TORCHELASTIC_RESTART_COUNT"));
    int port, listener = listener_of(file, sizeof file, launch);
    snprintf(file, sizeof file, "ring%d-%d", launch, (rank + 1) % n_ranks);
    while (!(port = read_number(file, "%*f %d"))) usleep(POLL_US);
    peer.sin_port = htons(port);
    *next = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(*next, (struct sockaddr *)&peer, sizeof peer)) lose_peer();
    *previous = accept(listener, NULL, NULL);
}

static void save(int next_step) {
    char unfinished[4096];
    FILE *out = fopen(strcpy(unfinished, path("checkpoint.new")), "w");
    fprintf(out, "%d", next_step);
    fclose(out);
    if (rename(unfinished, path("checkpoint"))) abort();
}

int main(void) {
    int next, previous, word;
    char starts[32];
    rank = atoi(variable("RANK", "NODE_RANK"));
    n_ranks = atoi(variable("WORLD_SIZE", "NNODES"));
    snprintf(starts, sizeof starts, "starts%d", rank);
    note(starts, "%d %s", getpid(), variable("LAGGARD_NODE", "TOY_NODE"));
    form_ring(&next, &previous);
    for (int step = read_number("checkpoint", "%d"); step < atoi(getenv("TOY_STEPS")); step++) {
        if (step == FAULT_STEP && fires()) make_fault();
        if (send(next, &rank, sizeof rank, MSG_NOSIGNAL) < 0) lose_peer();
        if (recv(previous, &word, sizeof word, MSG_WAITALL) != sizeof word) lose_peer();
        usleep(STEP_US);
        if (rank) continue;
        note("steps", "%d %d", step, getpid());
        if ((step + 1) % SAVE_EVERY == 0) save(step + 1);
    }
    return 0;
}
