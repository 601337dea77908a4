/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * kill-again PID CALLS: kills a process, waits for its parent's next child, stops that one after so
 * many system calls and kills it too. Prints the second one's number and the call it died in.
 * Exit status: 0 done, 1 the second one ended by itself, 2 cannot.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

static long parent_of(long pid)
{
	char path[64], line[512];
	long parent = -1;

	snprintf(path, sizeof(path), "/proc/%ld/stat", pid);
	FILE *file = fopen(path, "r");
	if (!file)
		return -1;
	if (fgets(line, sizeof(line), file)) {
		char *end = strrchr(line, ')');
		if (!end || sscanf(end + 1, " %*c %ld", &parent) != 1)
			parent = -1;
	}
	fclose(file);
	return parent;
}

int main(int count, char **words)
{
	long first = count == 3 ? atol(words[1]) : 0, calls = count == 3 ? atol(words[2]) : 0;
	long holder = first > 0 ? parent_of(first) : -1;
	int status, stop;

	if (holder < 2 || calls < 1) {
		fprintf(stderr, "usage: kill-again PID CALLS, where a holder is the parent of PID\n");
		return 2;
	}
	/* Every child of the holder is traced from its first moment on. */
	if (ptrace(PTRACE_SEIZE, holder, 0,
		   PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE)) {
		fprintf(stderr, "kill-again: process %ld: %s\n", holder, strerror(errno));
		return 2;
	}
	kill((pid_t)first, SIGKILL);
	long second = 0, seen = 0;
	for (;;) {
		pid_t who = waitpid(-1, &status, __WALL);
		if (who < 0)
			return 2;
		if (WIFEXITED(status) || WIFSIGNALED(status)) {
			if (who == second)
				return 1;
			continue;
		}
		stop = WSTOPSIG(status);
		if (who == holder) {
			unsigned long child;
			if (status >> 16 && status >> 16 != PTRACE_EVENT_STOP &&
			    !ptrace(PTRACE_GETEVENTMSG, holder, 0, &child)) {
				second = (long)child;
				/* The one child is all that is wanted of the holder. */
				ptrace(PTRACE_DETACH, holder, 0, 0);
				continue;
			}
			ptrace(PTRACE_CONT, holder, 0, status >> 16 ? 0 : stop);
			continue;
		}
		if (stop == SIGTRAP && !(status >> 16) && who == second && ++seen >= 2 * calls) {
			struct user_regs_struct registers;
			ptrace(PTRACE_GETREGS, second, 0, &registers);
			kill((pid_t)second, SIGKILL);
			printf("%ld %lld\n", second, (long long)registers.orig_rax);
			return 0;
		}
		ptrace(PTRACE_SYSCALL, who, 0, status >> 16 || stop == SIGTRAP ? 0 : stop);
	}
}
