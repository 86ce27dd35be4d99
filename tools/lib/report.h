/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_LIB_REPORT_H
#define TOOLS_LIB_REPORT_H

#include "lib/run.h"

/* target: where the other side ran: "process", "thread", "host NAME". */
cJSON *report_json(const struct run_result *r, const char *target);
/* Table for people. */
void report_heading(bool gbits);
void report_row(const struct run_result *r, bool gbits);
/* Print an object and a line end; takes it over. */
void report_print_json(cJSON *object);

#endif
