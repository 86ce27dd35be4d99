/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/ranks.h"

#include "lib/util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool number(const char *name, uint64_t max, uint64_t *out)
{
	const char *text = getenv(name);

	if (text == NULL)
		return false;
	if (!parse_u64(text, 0, max, out))
		die("%s is \"%s\": a number up to %llu is wanted", name, text,
		    (unsigned long long)max);
	return true;
}

static bool pair(const char *launcher, const char *rank, const char *count, struct ranks *out)
{
	uint64_t r;
	uint64_t n;

	if (!number(rank, UINT32_MAX, &r) || !number(count, UINT32_MAX, &n) || n < 2)
		return false;
	if (r >= n)
		die("%s is %llu, but %s is %llu", rank, (unsigned long long)r, count,
		    (unsigned long long)n);
	*out = (struct ranks){ .launcher = launcher, .rank = (uint32_t)r, .count = (uint32_t)n };
	return true;
}

void ranks_first_node(const char *list, char *out, uint32_t out_bytes)
{
	size_t prefix = strcspn(list, "[,");
	const char *inside = list + prefix + 1;

	if (list[prefix] != '[')
		(void)snprintf(out, out_bytes, "%.*s", (int)prefix, list);
	else
		(void)snprintf(out, out_bytes, "%.*s%.*s", (int)prefix, list,
		               (int)strcspn(inside, "-,]"), inside);
}

/* srun: a step may be smaller than its job. The first of the two names that is set; the package's
 * rendezvous.py reads the same. */
static const char *step_or_job(const char *step, const char *job)
{
	return getenv(step) != NULL ? step : job;
}

/* Whether all processes are on this machine. */
static bool one_machine(const struct ranks *r, const char *local_count, const char *nodes)
{
	uint64_t n;

	if (local_count != NULL && number(local_count, UINT32_MAX, &n))
		return n == r->count;
	return nodes != NULL && number(nodes, UINT32_MAX, &n) && n == 1;
}

static void find_host(struct ranks *r)
{
	const char *host = getenv("MASTER_ADDR");
	const char *nodes = getenv(step_or_job("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"));

	if (host != NULL)
		(void)snprintf(r->host, sizeof(r->host), "%s", host);
	else if (one_machine(r, "OMPI_COMM_WORLD_LOCAL_SIZE", NULL) ||
	         one_machine(r, NULL, step_or_job("SLURM_STEP_NUM_NODES", "SLURM_NNODES")))
		(void)snprintf(r->host, sizeof(r->host), "127.0.0.1");
	else if (strcmp(r->launcher, "srun") == 0 && nodes != NULL)
		ranks_first_node(nodes, r->host, sizeof(r->host));
}

bool ranks_find(struct ranks *out)
{
	uint64_t port;

	if (!pair("torchrun", "RANK", "WORLD_SIZE", out) &&
	    !pair("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", out) &&
	    !pair("srun", "SLURM_PROCID", step_or_job("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), out))
		return false;
	find_host(out);
	/* The launcher's own store listens on MASTER_PORT itself. */
	if (number("MASTER_PORT", UINT16_MAX - 1, &port))
		out->port = (uint16_t)(port + 1);
	return true;
}
