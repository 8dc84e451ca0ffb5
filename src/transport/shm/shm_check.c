/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets with a checksum after their payload (NEARMETAL_CHECKSUM=on). It covers the header, the
 * payload and the position in the stream. The reader copies first and checks its copy, so later
 * changes of the window have no effect. A copy by the kernel (CMA) uses no window and needs no
 * checksum.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/arith.h"
#include "base/hash.h"
#include "transport/shm/shm_private.h"

struct checksum {
	uint32_t crc;
};
_Static_assert(sizeof(struct checksum) == NM_SHM_CHECK_LEN, "cut off again in shm_move.c");

/* First part of a checksum: all of a packet except its payload. */
static uint32_t start(const struct nm_packet *pkt, uint32_t len, uint64_t position)
{
	const struct {
		uint64_t position, tag, data;
		uint32_t len;
		uint8_t op, flags, zero[2];
	} header = {position, pkt->tag, pkt->data, len, pkt->op, pkt->flags, {0, 0}};

	return nm_crc32c(0, &header, sizeof(header));
}

int nm_shm_send_checked(struct nm_link *base, const struct nm_packet *pkt, const struct iovec *iov,
			unsigned int nr_iov)
{
	struct shm_link *link = nm_shm_link_of(base);
	struct iovec more[NM_SHM_CHECKED_IOV + 1];
	struct nm_packet packet = *pkt;
	struct checksum sum = {start(pkt, pkt->len, link->writer.position)};
	unsigned int i;

	if (nr_iov > NM_SHM_CHECKED_IOV)
		return -EINVAL;
	for (i = 0; i < nr_iov; i++) {
		more[i] = iov[i];
		sum.crc = nm_crc32c(sum.crc, iov[i].iov_base, iov[i].iov_len);
	}
	more[nr_iov] = (struct iovec){&sum, sizeof(sum)};
	packet.len += (uint32_t)sizeof(sum);
	return nm_shm_send(base, &packet, more, nr_iov + 1);
}

/* Check the packet at POSITION. If it is as sent, PKT and PAYLOAD become a private copy of it. */
static bool check(struct shm_transport *shm, uint64_t position, struct nm_packet *pkt,
		  const void **payload)
{
	struct checksum sum;
	uint32_t len;

	if (pkt->len < sizeof(sum) || pkt->len > NM_MAX_CHUNK_SIZE)
		return false;
	memcpy(shm->checked, *payload, pkt->len);
	len = pkt->len - (uint32_t)sizeof(sum);
	memcpy(&sum, shm->checked + len, sizeof(sum));
	if (nm_crc32c(start(pkt, len, position), shm->checked, len) != sum.crc)
		return false;
	pkt->len = len;
	*payload = shm->checked;
	return true;
}

bool nm_shm_vouch(struct shm_transport *shm, uint32_t i, struct nm_packet *pkt,
		  const void **payload)
{
	struct shm_session *s = shm->sources[i];

	if (s->nr_withheld)
		nm_shm_withhold(shm, i);
	if (shm->checked && !check(shm, shm->readers[i].position, pkt, payload)) {
		nm_shm_cast_out(shm, s, "bytes that differ from their checksum");
		return false;
	}
	if (nm_likely(nm_vmseg_is_tied(&s->base.tie)))
		return true;
	nm_shm_lose(shm, s);
	return false;
}

int nm_shm_init_checks(struct shm_transport *shm, struct nm_reason *ret_reason)
{
	if (shm->base.max_payload < NM_MIN_MAX_PAYLOAD + NM_SHM_CHECK_ROOM) {
		nm_reason_set(ret_reason,
			      "NEARMETAL_CHECKSUM=on needs NEARMETAL_CHUNK_SIZE=8192 or more");
		return -EINVAL;
	}
	shm->checked = malloc(NM_MAX_CHUNK_SIZE);
	if (!shm->checked) {
		nm_reason_set(ret_reason, "out of memory");
		return -ENOMEM;
	}
	shm->is_wary = true;
	shm->base.max_payload -= NM_SHM_CHECK_ROOM;
	if (shm->base.eager_max > shm->base.max_payload)
		shm->base.eager_max = shm->base.max_payload;
	return 0;
}
