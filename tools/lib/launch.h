/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_LIB_LAUNCH_H
#define TOOLS_LIB_LAUNCH_H

/* How the two sides of a run come together: a client and the host it names, a server, --local (the
 * target is started by the client), or two ranks of a launcher. */

#include "lib/channel.h"
#include "lib/spec.h"

#include <argp.h>
#include <sys/types.h>

#define LAUNCH_PORT 18515

struct launch {
	/* From the command line. */
	const char *host; /* NULL: none was named */
	const char *provider;
	const char *nics;
	bool local;
	bool port_given;
	uint16_t port;
	/* Filled by launch_connect(). */
	bool client;
	bool shares_process;
	char nic_list[512]; /* of this side; "": as the settings say */
	char target[264];   /* where the target is, for the report */
	pid_t child;
	struct channel channel;
};

/* -d, -p, --local, --provider and one HOST; the parser's input is a struct launch. */
extern const struct argp launch_argp;

void launch_init(struct launch *l);
/* The provider of the run, into out. */
void launch_provider(const struct launch *l, char *out, unsigned out_bytes);
/* Connect. On the target's side serve until the client has done, and return false. */
bool launch_connect(struct launch *l);
const char *launch_nics(const struct launch *l);
/* The client's last step: part, wait for a target of its own. */
void launch_finish(struct launch *l);
/* The target process that launch_connect() starts: "wimm target FD NICS". */
int launch_target_main(int argc, char **argv);

#endif
