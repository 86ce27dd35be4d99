/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_ERROR_TEXT_H
#define CORE_ERROR_TEXT_H

/* The words behind wimm_last_error_text(). Errors themselves are returned as statuses; this keeps
 * one line for people, each thread its own. Cut at WIMM_ERROR_TEXT_BYTES. */

#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
void error_text_set(const char *fmt, ...);
void error_text_clear(void);

#endif
