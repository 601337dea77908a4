// SPDX-License-Identifier: GPL-2.0-only
/*
 * A CUDA program without CUDA: it loads the driver library that it is given, asks for
 * memory, is refused some, launches a kernel that does nothing, gives memory back. It
 * prints its process, the addresses, and how it was refused; a probe must have told all
 * of it. With a second argument it leaves out what the fake driver library lacks:
 * managed memory and kernels.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define LAUNCHES 2000
#define FAR_TOO_MUCH (1ULL << 50)
#define ATTACH_GLOBAL 1

typedef unsigned long long address;

/* PTX of a kernel that does nothing, for any GPU. */
static const char KERNEL[] =
	".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry nothing()\n{\n\tret;\n}\n";

static void *library;

static void *function(const char *name)
{
	void *found = dlsym(library, name);

	if (!found) {
		fprintf(stderr, "the library has no %s\n", name);
		exit(1);
	}
	return found;
}

static void must(const char *what, int result)
{
	if (result) {
		fprintf(stderr, "%s: CUresult %d\n", what, result);
		exit(1);
	}
}

static void launch(void)
{
	int (*load)(void **, const void *) = function("cuModuleLoadData");
	int (*find)(void **, void *, const char *) = function("cuModuleGetFunction");
	int (*run)(void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
		   unsigned int, unsigned int, void *, void **, void **) =
		function("cuLaunchKernel");
	int (*wait)(void) = function("cuCtxSynchronize");
	void *module, *kernel;
	int i;

	must("cuModuleLoadData", load(&module, KERNEL));
	must("cuModuleGetFunction", find(&kernel, module, "nothing"));
	for (i = 0; i < LAUNCHES; i++)
		must("cuLaunchKernel", run(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	must("cuCtxSynchronize", wait());
}

int main(int count, char **argument)
{
	int (*init)(unsigned int), (*device)(int *, int), (*retain)(void **, int);
	int (*use)(void *), (*alloc)(address *, size_t), (*give_back)(address);
	int (*managed)(address *, size_t, unsigned int);
	address at[4] = {}, none = 0;
	int number, refused, i;
	void *context;

	if (count < 2 || !(library = dlopen(argument[1], RTLD_NOW))) {
		fprintf(stderr, "cannot load the library: %s\n", count < 2 ? "none given" : dlerror());
		return 2;
	}
	init = function("cuInit");
	device = function("cuDeviceGet");
	retain = function("cuDevicePrimaryCtxRetain");
	use = function("cuCtxSetCurrent");
	alloc = function("cuMemAlloc_v2");
	give_back = function("cuMemFree_v2");
	must("cuInit", init(0));
	must("cuDeviceGet", device(&number, 0));
	must("cuDevicePrimaryCtxRetain", retain(&context, number));
	must("cuCtxSetCurrent", use(context));
	for (i = 0; i < 3; i++)
		must("cuMemAlloc_v2", alloc(&at[i], (size_t)(i + 1) << 20));
	refused = alloc(&none, FAR_TOO_MUCH);
	if (count == 2) {
		managed = function("cuMemAllocManaged");
		must("cuMemAllocManaged", managed(&at[3], 4 << 20, ATTACH_GLOBAL));
		launch();
		must("cuMemFree_v2", give_back(at[3]));
	}
	for (i = 0; i < 3; i++)
		must("cuMemFree_v2", give_back(at[i]));
	printf("%d %llu %llu %llu %llu %d\n", getpid(), at[0], at[1], at[2], at[3], refused);
	return 0;
}
