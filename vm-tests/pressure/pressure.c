/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * pressure: memory pressure with pages that can be verified.
 *
 * Fills anonymous memory, passes over it (verify each page, rewrite some), verifies all of
 * it once more and prints one line of JSON. The content of a page is a function of the
 * seed, its index and its version, so a page that was lost, mixed up, torn or brought
 * back in an older version is seen. Exit status: 0 all pages right, 1 a page was wrong,
 * 2 the program could not run as it was asked to.
 *
 * All memory but the pages under test is locked before they are touched: what swaps is
 * the test, never the tester. Nothing is allocated after that.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum {
	PAGE = 4096,
	WORDS = PAGE / sizeof(uint64_t),
	MAX_TASKS = 64,
	STACK = 256 * 1024,
	SHOWN = 8,		/* wrong pages described one by one, per task */
	STEPS = 16,		/* histogram buckets per doubling */
	BUCKETS = 64 * STEPS,
	PROGRESS_SECONDS = 5,
	PERCENT = 100,
};

enum phase { FILL, PASSES, FINAL, PHASES };
static const char *const phase_name[PHASES] = { "fills", "passes", "verifies" };

struct task {
	pthread_t thread;
	uint64_t first, pages;
	uint64_t random;
	_Atomic uint64_t done;	/* pages of the present phase */
	uint64_t passes, verified, rewritten;
	uint64_t wrong, wrong_zero, wrong_stale;
	uint64_t max_us;
	uint64_t touches[BUCKETS];
};

static struct {
	uint64_t bytes, passes, seconds, write_percent, seed, tasks;
	bool random, hold, huge_pages;
	const char *ready;
} option = { .write_percent = 30, .seed = 1, .tasks = 1 };

static uint64_t (*memory)[WORDS];
static uint32_t *version;
static struct task *tasks;
static pthread_barrier_t gate;
static _Atomic uint64_t arrived;
static uint64_t deadline_ns;

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...)
{
	char line[512];
	va_list arguments;

	va_start(arguments, format);
	int length = vsnprintf(line, sizeof(line), format, arguments);
	va_end(arguments);
	if (length >= (int)sizeof(line))
		length = sizeof(line) - 1;
	/* A progress line that is lost changes nothing. */
	if (write(STDERR_FILENO, line, length) < 0)
		return;
}

static void die(const char *what, const char *value)
{
	say("pressure: %s %s: %s\n", what, value, strerror(errno));
	exit(2);
}

static void usage(const char *what, const char *value)
{
	say("pressure: %s %s\n"
	    "usage: pressure --bytes SIZE[K|M|G] (--passes N | --seconds S | --hold)\n"
	    "       [--write PERCENT] [--random] [--tasks N] [--seed N] [--huge-pages]\n"
	    "       [--ready FILE]\n", what, value);
	exit(2);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t mix(uint64_t x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9u;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static uint64_t page_key(uint64_t page, uint32_t page_version)
{
	return mix(mix(option.seed + page) + page_version);
}

/* One multiplication a word: the check must be cheap beside a page fault. */
static uint64_t word(uint64_t key, uint64_t i)
{
	uint64_t x = (key + i) * 0x9e3779b97f4a7c15u;

	return x ^ x >> 29;
}

static uint64_t next_random(struct task *task)
{
	task->random += 0x9e3779b97f4a7c15u;
	return mix(task->random);
}

static void write_page(uint64_t page)
{
	uint64_t key = page_key(page, ++version[page]);

	for (uint64_t i = 0; i < WORDS; i++)
		memory[page][i] = word(key, i);
}

/* The index of the first word that is not of this version, WORDS where all are. */
static uint64_t first_difference(uint64_t page, uint32_t page_version)
{
	uint64_t key = page_key(page, page_version);

	for (uint64_t i = 0; i < WORDS; i++)
		if (memory[page][i] != word(key, i))
			return i;
	return WORDS;
}

static void describe_wrong(struct task *task, uint64_t page, uint64_t at)
{
	bool zero = true, stale = false;

	for (uint64_t i = 0; i < WORDS; i++)
		zero = zero && memory[page][i] == 0;
	for (uint32_t v = 1; v < version[page] && !stale; v++)
		stale = first_difference(page, v) == WORDS;
	task->wrong_zero += zero;
	task->wrong_stale += stale;
	if (++task->wrong <= SHOWN)
		say("pressure: page %llu version %u is wrong from byte %llu: %016llx, not %016llx%s\n",
		    (unsigned long long)page, version[page], (unsigned long long)(at * sizeof(uint64_t)),
		    (unsigned long long)memory[page][at],
		    (unsigned long long)word(page_key(page, version[page]), at),
		    zero ? " (all zeros)" : stale ? " (an older version)" : "");
}

static uint64_t bucket_of(uint64_t us)
{
	if (us < STEPS)
		return us;
	uint64_t doubling = 63 - __builtin_clzll(us);
	uint64_t shift = doubling - 4;	/* log2(STEPS) */

	return (shift + 1) * STEPS + (us >> shift) - STEPS;
}

/* The largest value that falls into a bucket. */
static uint64_t bucket_top(uint64_t bucket)
{
	if (bucket < STEPS)
		return bucket;
	uint64_t shift = bucket / STEPS - 1;

	return ((bucket % STEPS + STEPS + 1) << shift) - 1;
}

static void verify_page(struct task *task, uint64_t page)
{
	uint64_t before = now_ns();

	(void)*(volatile uint64_t *)&memory[page][0];
	uint64_t us = (now_ns() - before) / 1000;

	task->touches[bucket_of(us)]++;
	if (us > task->max_us)
		task->max_us = us;
	uint64_t at = first_difference(page, version[page]);

	if (at != WORDS) {
		describe_wrong(task, page, at);
		write_page(page);	/* counted once, not in each later pass */
	}
	task->verified++;
}

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
	while (b) {
		uint64_t rest = a % b;

		a = b;
		b = rest;
	}
	return a;
}

/* Walks over all pages of a task once; gives false where the time was over before. */
static bool walk(struct task *task, enum phase phase)
{
	uint64_t step = 1, at = 0;

	if (option.random && phase == PASSES) {
		/* A step without common divisor meets every page once, in no order a
		 * readahead could use. */
		step = next_random(task) % task->pages | 1;
		while (common_divisor(step, task->pages) != 1)
			step++;
		at = next_random(task) % task->pages;
	}
	for (uint64_t i = 0; i < task->pages; i++) {
		uint64_t page = task->first + at;

		if (phase == PASSES && deadline_ns && i % 64 == 0 && now_ns() > deadline_ns)
			return false;
		if (phase == FILL) {
			write_page(page);
		} else {
			verify_page(task, page);
			if (phase == PASSES && next_random(task) % PERCENT < option.write_percent) {
				write_page(page);
				task->rewritten++;
			}
		}
		at = (at + step) % task->pages;
		atomic_fetch_add_explicit(&task->done, 1, memory_order_relaxed);
	}
	return true;
}

static void meet(void)
{
	atomic_fetch_add(&arrived, 1);
	pthread_barrier_wait(&gate);
}

static void *work(void *argument)
{
	struct task *task = argument;

	walk(task, FILL);
	meet();
	if (option.seconds)
		while (walk(task, PASSES))
			task->passes++;
	for (; task->passes < option.passes; task->passes++)
		walk(task, PASSES);
	meet();
	walk(task, FINAL);
	meet();
	return NULL;
}

static uint64_t number(const char *name, const char *text, uint64_t least, uint64_t most)
{
	char *end;

	errno = 0;
	unsigned long long value = strtoull(text, &end, 10);

	if (*text < '0' || *text > '9' || *end || errno || value < least || value > most) {
		say("pressure: %s must be a number from %llu to %llu\n", name,
		    (unsigned long long)least, (unsigned long long)most);
		usage("it is not:", text);
	}
	return value;
}

static uint64_t size(const char *text)
{
	static const char units[] = "KMG";
	char digits[32];
	size_t length = strlen(text);
	const char *unit = length ? strchr(units, text[length - 1]) : NULL;
	unsigned shift = unit ? 10 * (unsigned)(unit - units + 1) : 0;

	length -= unit ? 1 : 0;
	if (length >= sizeof(digits))
		usage("--bytes is too long:", text);
	memcpy(digits, text, length);
	digits[length] = 0;
	uint64_t value = number("--bytes", digits, 1, (uint64_t)1 << (46 - shift)) << shift;

	if (value % PAGE)
		usage("--bytes is not a whole number of 4 KiB pages:", text);
	return value;
}

static void parse(int count, char **arguments)
{
	static const struct option known[] = {
		{ "bytes", required_argument, NULL, 'b' },
		{ "passes", required_argument, NULL, 'p' },
		{ "seconds", required_argument, NULL, 's' },
		{ "hold", no_argument, NULL, 'h' },
		{ "write", required_argument, NULL, 'w' },
		{ "random", no_argument, NULL, 'r' },
		{ "tasks", required_argument, NULL, 't' },
		{ "seed", required_argument, NULL, 'e' },
		{ "huge-pages", no_argument, NULL, 'u' },
		{ "ready", required_argument, NULL, 'y' },
		{ 0 },
	};
	int letter;

	while ((letter = getopt_long(count, arguments, "", known, NULL)) != -1) {
		switch (letter) {
		case 'b': option.bytes = size(optarg); break;
		case 'p': option.passes = number("--passes", optarg, 1, UINT32_MAX); break;
		case 's': option.seconds = number("--seconds", optarg, 1, 86400); break;
		case 'h': option.hold = true; break;
		case 'w': option.write_percent = number("--write", optarg, 0, PERCENT); break;
		case 'r': option.random = true; break;
		case 't': option.tasks = number("--tasks", optarg, 1, MAX_TASKS); break;
		case 'e': option.seed = number("--seed", optarg, 0, UINT32_MAX); break;
		case 'u': option.huge_pages = true; break;
		case 'y': option.ready = optarg; break;
		default: usage("unknown or incomplete option", arguments[optind - 1]);
		}
	}
	if (optind != count)
		usage("not an option:", arguments[optind]);
	if (!option.bytes)
		usage("--bytes", "is missing");
	if ((option.passes != 0) + (option.seconds != 0) + option.hold != 1)
		usage("exactly one of", "--passes, --seconds and --hold is needed");
	if (option.bytes / PAGE < option.tasks)
		usage("fewer pages", "than tasks");
}

static void *map(size_t length, const char *what)
{
	void *place = mmap(NULL, length, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (place == MAP_FAILED)
		die("cannot map memory for", what);
	return place;
}

static void prepare(const sigset_t *held)
{
	uint64_t pages = option.bytes / PAGE;
	char *stacks;

	tasks = map(sizeof(*tasks) * option.tasks, "the tasks");
	version = map(sizeof(*version) * pages, "the versions");
	stacks = map((size_t)STACK * option.tasks, "the stacks");
	if (mlockall(MCL_CURRENT) != 0)
		die("cannot lock the tester's own memory", "(mlockall)");
	memory = map(option.bytes, "the pages under test");
	if (madvise(memory, option.bytes, option.huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) != 0)
		die("cannot set the page size of", "the pages under test");
	if (option.hold)
		pthread_sigmask(SIG_BLOCK, held, NULL);
	pthread_barrier_init(&gate, NULL, (unsigned)option.tasks + 1);
	for (uint64_t i = 0, first = 0; i < option.tasks; i++) {
		struct task *task = &tasks[i];
		pthread_attr_t attributes;

		task->first = first;
		task->pages = pages / option.tasks + (i < pages % option.tasks);
		task->random = mix(option.seed) + i;
		first += task->pages;
		pthread_attr_init(&attributes);
		pthread_attr_setstack(&attributes, stacks + (size_t)STACK * i, STACK);
		errno = pthread_create(&task->thread, &attributes, work, task);
		if (errno)
			die("cannot start", "a task");
	}
}

/* Waits until all tasks are through the phase, and says now and then how far they are. */
static void watch(enum phase phase)
{
	const struct timespec pause = { .tv_nsec = 50000000 };
	uint64_t begin = now_ns(), shown = begin;

	while (atomic_load(&arrived) != option.tasks) {
		clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
		if (now_ns() - shown < PROGRESS_SECONDS * 1000000000ull)
			continue;
		uint64_t done = 0;

		shown = now_ns();
		for (uint64_t i = 0; i < option.tasks; i++)
			done += atomic_load_explicit(&tasks[i].done, memory_order_relaxed);
		say("pressure: %s since %llu s, %llu pages\n", phase_name[phase],
		    (unsigned long long)((shown - begin) / 1000000000u), (unsigned long long)done);
	}
	atomic_store(&arrived, 0);
	for (uint64_t i = 0; i < option.tasks; i++)
		atomic_store(&tasks[i].done, 0);
}

static void announce(void)
{
	say("pressure: %llu bytes are filled\n", (unsigned long long)option.bytes);
	if (!option.ready)
		return;
	int file = open(option.ready, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

	if (file < 0)
		die("cannot create", option.ready);
	close(file);
}

static uint64_t percentile(const uint64_t *touches, uint64_t total, uint64_t percent)
{
	uint64_t seen = 0;

	for (uint64_t bucket = 0; bucket < BUCKETS; bucket++) {
		seen += touches[bucket];
		if (seen && seen * PERCENT >= total * percent)
			return bucket_top(bucket);
	}
	return 0;
}

static uint64_t print_result(uint64_t begin_ns)
{
	static struct task sum;
	struct rusage usage_now;
	uint64_t median, high;

	sum.passes = UINT64_MAX;
	for (uint64_t i = 0; i < option.tasks; i++) {
		sum.passes = tasks[i].passes < sum.passes ? tasks[i].passes : sum.passes;
		sum.verified += tasks[i].verified;
		sum.rewritten += tasks[i].rewritten;
		sum.wrong += tasks[i].wrong;
		sum.wrong_zero += tasks[i].wrong_zero;
		sum.wrong_stale += tasks[i].wrong_stale;
		sum.max_us = tasks[i].max_us > sum.max_us ? tasks[i].max_us : sum.max_us;
		for (uint64_t b = 0; b < BUCKETS; b++)
			sum.touches[b] += tasks[i].touches[b];
	}
	getrusage(RUSAGE_SELF, &usage_now);
	median = percentile(sum.touches, sum.verified, 50);
	high = percentile(sum.touches, sum.verified, 99);
	/* A bucket's upper end may lie above the largest value seen. */
	printf("{\"bytes\":%llu,\"tasks\":%llu,\"passes\":%llu,\"verified\":%llu,\"rewritten\":%llu,"
	       "\"wrong\":%llu,\"wrong_zero\":%llu,\"wrong_stale\":%llu,\"major_faults\":%ld,"
	       "\"seconds\":%.1f,\"p50_us\":%llu,\"p99_us\":%llu,\"max_us\":%llu}\n",
	       (unsigned long long)option.bytes, (unsigned long long)option.tasks,
	       (unsigned long long)sum.passes, (unsigned long long)sum.verified,
	       (unsigned long long)sum.rewritten, (unsigned long long)sum.wrong,
	       (unsigned long long)sum.wrong_zero, (unsigned long long)sum.wrong_stale,
	       usage_now.ru_majflt, (double)(now_ns() - begin_ns) / 1e9,
	       (unsigned long long)(median < sum.max_us ? median : sum.max_us),
	       (unsigned long long)(high < sum.max_us ? high : sum.max_us),
	       (unsigned long long)sum.max_us);
	if (fflush(stdout) != 0)
		die("cannot print", "the result");
	return sum.wrong;
}

int main(int count, char **arguments)
{
	uint64_t begin = now_ns();
	sigset_t held;
	int signal_number;

	parse(count, arguments);
	sigemptyset(&held);
	sigaddset(&held, SIGUSR1);
	sigaddset(&held, SIGTERM);
	prepare(&held);
	watch(FILL);
	announce();
	if (option.hold)
		sigwait(&held, &signal_number);
	if (option.seconds)
		deadline_ns = now_ns() + option.seconds * 1000000000u;
	pthread_barrier_wait(&gate);
	watch(PASSES);
	pthread_barrier_wait(&gate);
	watch(FINAL);
	pthread_barrier_wait(&gate);
	for (uint64_t i = 0; i < option.tasks; i++)
		pthread_join(tasks[i].thread, NULL);
	return print_result(begin) ? 1 : 0;
}
