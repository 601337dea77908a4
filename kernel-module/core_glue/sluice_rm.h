/* SPDX-License-Identifier: GPL-2.0-only */
/* What the semantic patches have the kernel's side of the driver's core call. */
#ifndef SLUICE_RM_H
#define SLUICE_RM_H

#include "sluice_task.h"

/* A GPU is in use from here on, until it is removed. Without locks of the core; may sleep. */
void nv_sluice_add_gpu(nv_state_t *nv);
/* Also for a GPU that was not added. Returns when nothing is done for it any more. */
void nv_sluice_remove_gpu(nv_state_t *nv);

#endif /* SLUICE_RM_H */
