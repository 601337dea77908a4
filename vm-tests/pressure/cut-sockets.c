/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * cut-sockets PID: shuts down every connected, unnamed Unix stream socket of a process, as if the
 * connection behind it had died. Prints how many. Exit status: 0 some, 1 none, 2 cannot.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

static int is_unnamed_stream(int fd)
{
	struct sockaddr_un own, peer;
	socklen_t own_size = sizeof(own), peer_size = sizeof(peer), size = sizeof(int);
	int type;

	return !getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) && type == SOCK_STREAM &&
	       !getsockname(fd, (struct sockaddr *)&own, &own_size) && own.sun_family == AF_UNIX &&
	       own_size == sizeof(sa_family_t) &&
	       !getpeername(fd, (struct sockaddr *)&peer, &peer_size) &&
	       peer_size == sizeof(sa_family_t);
}

int main(int count, char **words)
{
	char path[64];
	char *end;
	long pid = count == 2 ? strtol(words[1], &end, 10) : 0;
	int cut = 0;

	if (pid <= 0 || *end) {
		fprintf(stderr, "usage: cut-sockets PID\n");
		return 2;
	}
	snprintf(path, sizeof(path), "/proc/%ld/fd", pid);
	int process = (int)syscall(SYS_pidfd_open, pid, 0);
	DIR *folder = opendir(path);
	if (process < 0 || !folder) {
		fprintf(stderr, "cut-sockets: process %ld: %s\n", pid, strerror(errno));
		return 2;
	}
	for (struct dirent *entry; (entry = readdir(folder));) {
		int fd = (int)syscall(SYS_pidfd_getfd, process, atoi(entry->d_name), 0);
		if (entry->d_name[0] != '.' && fd >= 0 && is_unnamed_stream(fd) &&
		    !shutdown(fd, SHUT_RDWR))
			cut++;
		if (fd >= 0)
			close(fd);
	}
	printf("%d\n", cut);
	return cut == 0;
}
