! SPDX-License-Identifier: Apache-2.0
! Coarrays between all images: put, get, atomics, sums and broadcasts; each value is checked.
program coarrays
  use, intrinsic :: iso_fortran_env, only: atomic_int_kind
  implicit none
  integer, parameter :: words = 1024
  integer, allocatable :: box(:)[:], got(:)
  integer(atomic_int_kind), allocatable :: counter[:]
  integer :: me, all, next, previous, size, total, i
  character(len=32) :: word

  me = this_image()
  all = num_images()
  next = merge(1, me + 1, me == all)
  previous = merge(all, me - 1, me == 1)
  allocate (counter[*])
  size = 1
  do while (size <= words)
    allocate (box(size)[*])
    box = -1
    sync all
    box(:)[next] = [(value(me, i), i=1, size)]
    sync all
    if (any(box /= [(value(previous, i), i=1, size)])) error stop 'wrong after a put'
    allocate (got(size))
    got(:) = box(:)[next]
    if (any(got /= [(value(me, i), i=1, size)])) error stop 'wrong after a get'
    sync all
    deallocate (box, got)
    size = size*4
  end do
  counter = 0
  sync all
  do i = 1, 50
    call atomic_add(counter[1], me)
  end do
  sync all
  if (me == 1 .and. counter /= 50*all*(all + 1)/2) error stop 'wrong after atomics'
  total = me
  call co_sum(total)
  if (total /= all*(all + 1)/2) error stop 'wrong after a sum'
  word = merge('from the last image', '                   ', me == all)
  call co_broadcast(word, all)
  if (word /= 'from the last image') error stop 'wrong after a broadcast'
  sync all
  if (me == 1) print '(a, i0, a)', 'coarrays OK: ', all, ' images'

contains

  pure integer function value(image, at)
    integer, intent(in) :: image, at

    value = image*1000003 + at
  end function value

end program coarrays
