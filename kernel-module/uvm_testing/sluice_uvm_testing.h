/* SPDX-License-Identifier: GPL-2.0-only */
/* What the test-only semantic patch adds to uvm_pmm_gpu.c. */
#ifndef SLUICE_UVM_TESTING_H
#define SLUICE_UVM_TESTING_H

#include "uvm_pmm_gpu.h"

/* A chunk was filled, with the lists' lock held. */
void sluice_uvm_testing_update(uvm_pmm_gpu_t *pmm, uvm_gpu_chunk_t *chunk);

/* Chooses a victim, and marks it; NULL if there is none. */
uvm_gpu_root_chunk_t *sluice_uvm_testing_pick(uvm_pmm_gpu_t *pmm);

#endif /* SLUICE_UVM_TESTING_H */
