// SPDX-License-Identifier: GPL-2.0-only
/*
 * For the scenario of the probe on NVIDIA's unified memory: touches pages of managed memory
 * from the processor, through the driver's own device, and says what came of it. It needs no
 * GPU and no CUDA.
 *
 *     uvm_client PLACE PAGES <TOUCHES
 *
 * PLACE is the memory's address. It reads touches, as "r 5" or "w 0" with a page's number,
 * prints "ready", waits for SIGUSR1, and prints a line of JSON for each touch that faulted.
 * What it says of faults and pages is the kernel's: its count of faults, its page table.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* The device's first command: makes an address space of the open file. */
#define UVM_INITIALIZE 0x30000001
#define PAGE 4096UL
#define MOST_PAGES 4096
#define MOST_TOUCHES 4096
/* In an entry of /proc/PID/pagemap: the page is in the page table. */
#define PRESENT (1ULL << 63)

static struct {
	char how;
	unsigned long page;
} touches[MOST_TOUCHES];
static int nr_touches;
static unsigned long place, pages;
static uint64_t before[MOST_PAGES], after[MOST_PAGES];
static int pagemap;

static void give_up(const char *what)
{
	fprintf(stderr, "uvm_client: %s: %s\n", what, strerror(errno));
	exit(1);
}

static unsigned long faults(void)
{
	struct rusage usage;

	if (getrusage(RUSAGE_THREAD, &usage))
		give_up("getrusage");
	return usage.ru_minflt + usage.ru_majflt;
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ULL + now.tv_nsec;
}

static void look(uint64_t *entries)
{
	ssize_t bytes = pages * sizeof(*entries);

	if (pread(pagemap, entries, bytes, place / PAGE * sizeof(*entries)) != bytes)
		give_up("/proc/self/pagemap");
}

/* Says what came of a touch: the page itself, and others beside it. */
static void tell(int nr, unsigned long new_faults, uint64_t begin, uint64_t end)
{
	unsigned long page, came = 0, first = 0;

	look(after);
	for (page = 0; page < pages; page++) {
		if ((before[page] & PRESENT) && !(after[page] & PRESENT))
			give_up("a page has gone");
		if (page == touches[nr].page || (before[page] & PRESENT) ||
		    !(after[page] & PRESENT))
			continue;
		if (!came++)
			first = place + page * PAGE;
	}
	if (!(after[touches[nr].page] & PRESENT))
		give_up("the touched page is not there");
	printf("{\"address\": %lu, \"writes\": %s, \"faults\": %lu, \"came\": %lu, "
	       "\"first\": %lu, \"begin_ns\": %lu, \"end_ns\": %lu}\n",
	       place + touches[nr].page * PAGE, touches[nr].how == 'w' ? "true" : "false",
	       new_faults, came, first, begin, end);
	memcpy(before, after, sizeof(before));
}

static void *touch_all(void *unused)
{
	int nr;

	look(before);
	for (nr = 0; nr < nr_touches; nr++) {
		volatile char *at = (char *)place + touches[nr].page * PAGE;
		uint64_t begin = now_ns();
		unsigned long faults_before = faults(), new_faults;

		if (touches[nr].how == 'w')
			*at = 1;
		else
			(void)*at;
		new_faults = faults() - faults_before;
		if (new_faults)
			tell(nr, new_faults, begin, now_ns());
	}
	return unused;
}

int main(int argc, char **argv)
{
	struct {
		uint64_t flags;
		uint32_t status;
	} initialize = {};
	pthread_t thread;
	sigset_t start;
	int file, signal;

	place = argc == 3 ? strtoul(argv[1], NULL, 0) : 0;
	pages = argc == 3 ? strtoul(argv[2], NULL, 0) : 0;
	errno = EINVAL;
	if (!place || !pages || pages > MOST_PAGES)
		give_up("PLACE PAGES");
	while (nr_touches < MOST_TOUCHES &&
	       scanf(" %c %lu", &touches[nr_touches].how, &touches[nr_touches].page) == 2) {
		if (!strchr("rw", touches[nr_touches].how) || touches[nr_touches].page >= pages)
			give_up("a touch that is not `r PAGE` or `w PAGE`");
		nr_touches++;
	}
	if (!feof(stdin))
		give_up("TOUCHES");

	pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	file = open("/dev/nvidia-uvm", O_RDWR | O_CLOEXEC);
	if (pagemap < 0 || file < 0)
		give_up("open");
	if (ioctl(file, UVM_INITIALIZE, &initialize) || initialize.status)
		give_up("UVM_INITIALIZE");
	/* No fault but the driver's is to be counted: all else is there beforehand. */
	if (mlockall(MCL_CURRENT))
		give_up("mlockall");
	/* Managed memory is at the address that is its offset in the file. */
	if (mmap((void *)place, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE,
		 file, place) == MAP_FAILED)
		give_up("mmap");

	sigemptyset(&start);
	sigaddset(&start, SIGUSR1);
	sigprocmask(SIG_BLOCK, &start, NULL);
	printf("ready\n");
	fflush(stdout);
	sigwait(&start, &signal);
	/* Not the first thread: a process is to be told of. */
	if (pthread_create(&thread, NULL, touch_all, NULL) || pthread_join(thread, NULL))
		give_up("pthread");
	printf("done\n");
	return 0;
}
