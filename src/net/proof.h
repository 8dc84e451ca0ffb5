/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The proof that a source is at the address that it claims. Whoever reaches the port of an endpoint
 * can claim any identity. So a source first asks for a token, and the answer goes to the address
 * that it claims:
 *
 *       A                                          B
 *       KNOCK {address of A, nonce}        ->
 *                                         <-       TOKEN {nonce, token}, to that address
 *       HELLO {token, A's own for B}       ->      takes A as a source
 *       PACKET {token} ...                 ->
 *
 * Every later message carries the token, so no other process can send in the name of A, with a wrong
 * number for example, unless it reads the traffic. A takes a TOKEN only if it has the nonce that A
 * sent to B. HELLO brings the token for the way back, so B need not knock.
 *
 * If B refuses the HELLO, it answers with a HELLO and a BYE (NM_NET_REFUSED): the packets that follow
 * are lost, and A must know.
 *
 * Both numbers are keyed hashes of addresses: the endpoint keeps nothing for those who knock.
 */
#ifndef NM_NET_PROOF_H
#define NM_NET_PROOF_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hash.h"
#include "connect/address.h"

/* The token that the endpoint with KEY gives to a source at ADDRESS. */
uint64_t nm_net_token(const uint8_t key[NM_SIPHASH_KEY_LEN], const struct nm_address *address);
/* The nonce with which it knocks at ADDRESS. */
uint64_t nm_net_nonce(const uint8_t key[NM_SIPHASH_KEY_LEN], const struct nm_address *address);
/* True if two addresses name the same inner endpoint. */
bool nm_net_same_name(const struct nm_address *a, const struct nm_address *b);

#endif
