/* SPDX-License-Identifier: Apache-2.0 */
/* Messages on the session socket. Texts that are accepted must end and be fit to print. */
#include <stdlib.h>
#include <string.h>

#include "connect/message.h"
#include "target.h"

static void expect_printable(const char *text, size_t size)
{
	size_t i;

	for (i = 0; i < size && text[i]; i++)
		if (text[i] < 0x20 || text[i] > 0x7e)
			abort();
	if (i == size)
		abort();
}

void nm_fuzz_input(const uint8_t *bytes, size_t len)
{
	struct nm_greeting greeting;
	struct nm_step bye;
	struct nm_reason why = {""};
	int kind, wanted;

	kind = nm_message_parse(bytes, len, &why);
	if (kind < 0 && !why.text[0])
		abort();
	if (kind == NM_MESSAGE_BYE) {
		nm_step_copy(bytes, &bye);
		expect_printable(bye.words, sizeof(bye.words));
	}
	for (wanted = NM_MESSAGE_HELLO; wanted <= NM_MESSAGE_WELCOME; wanted++) {
		if (nm_greeting_parse(bytes, len, (enum nm_message_kind)wanted, &greeting, &why)) {
			expect_printable(why.text, sizeof(why.text));
			continue;
		}
		if (kind != wanted || len != sizeof(greeting) ||
		    greeting.features & ~NM_FEATURES_KNOWN)
			abort();
		expect_printable(greeting.label.text, sizeof(greeting.label.text));
	}
}
