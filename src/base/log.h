/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdatomic.h>
#include <stdbool.h>

/* One line a message, to stderr or to the sink. Whoever first decides that something is an error
 * logs it, once; callers only pass it on. Never on the data path. Thread: any. */
typedef enum {
	LOG_LEVEL_OFF = 0,
	LOG_LEVEL_ERROR = 1,
	LOG_LEVEL_WARN = 2,
	LOG_LEVEL_INFO = 3,
	LOG_LEVEL_DEBUG = 4,
} log_level;

/* text: one line without its newline, valid during the call only. Called under no lock of ours. */
typedef void (*log_sink_fn)(void *arg, log_level level, const char *text);

#define LOG_ERROR(...) LOG_AT(LOG_LEVEL_ERROR, __VA_ARGS__)
#define LOG_WARN(...)  LOG_AT(LOG_LEVEL_WARN, __VA_ARGS__)
#define LOG_INFO(...)  LOG_AT(LOG_LEVEL_INFO, __VA_ARGS__)
#define LOG_DEBUG(...) LOG_AT(LOG_LEVEL_DEBUG, __VA_ARGS__)

/* Arguments are not evaluated when the level is off; then it costs one load. */
#define LOG_AT(level, ...)                                                                         \
	do {                                                                                       \
		if (log_enabled(level))                                                            \
			log_write((level), __VA_ARGS__);                                           \
	} while (0)

/* Above every level until the settings have been read, so that the first message reads them. */
extern _Atomic int log_threshold;

static inline bool log_enabled(log_level level)
{
	return (int)level <= atomic_load_explicit(&log_threshold, memory_order_relaxed);
}

void log_write(log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* NULL goes back to stderr. A call of the old sink that has begun may outlive this one: keep its
 * arg until the threads that log have ended. */
void log_set_sink(log_sink_fn sink, void *arg);

/* Overrides the setting log_level. */
void log_set_level(log_level level);

/* "off", "error", ...; a static string. */
const char *log_level_name(log_level level);

#endif
