/* SPDX-License-Identifier: Apache-2.0 */
#include "prov/providers.h"

#include <string.h>

/* A written list, not load-time constructors: static linking and the order stay predictable. */
static const struct prov_ops *const providers[] = {
	&prov_tcp_ops,
	&prov_host_ops,
#ifdef HAVE_VERBS
	&prov_verbs_ops,
#endif
	&prov_sim_ops,
};

enum { PROVIDER_COUNT = sizeof(providers) / sizeof(providers[0]) };

/* A table built for another version of prov.h is as good as absent. */
static bool usable(const struct prov_ops *ops)
{
	return ops->abi == PROV_ABI;
}

const struct prov_ops *prov_find(const char *name)
{
	for (uint32_t i = 0; i < PROVIDER_COUNT; i++) {
		if (usable(providers[i]) && strcmp(providers[i]->name, name) == 0)
			return providers[i];
	}
	return NULL;
}

const struct prov_ops *prov_same_host(void)
{
	return &prov_host_ops;
}

const struct prov_ops *prov_at(uint32_t index)
{
	for (uint32_t i = 0; i < PROVIDER_COUNT; i++) {
		if (usable(providers[i]) && index-- == 0)
			return providers[i];
	}
	return NULL;
}
