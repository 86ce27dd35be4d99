/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_PROVIDERS_H
#define PROV_PROVIDERS_H

#include "prov/prov.h"

/* The tables that registry.c lists. */
extern const struct prov_ops prov_tcp_ops;
extern const struct prov_ops prov_host_ops;
extern const struct prov_ops prov_sim_ops;
extern const struct prov_ops prov_verbs_ops; /* only with HAVE_VERBS */

#endif
