/* SPDX-License-Identifier: MIT */
/* Our prototypes against the vendor's header, where it is installed: as many parameters, each of the same size and kind. Only
 * compiled. Compile with VENDOR_HEADER, SYMBOLS_HEADER, and ALL naming the list. */
#include VENDOR_HEADER
#include SYMBOLS_HEADER

#include <type_traits>

namespace {
template <class A, class B> constexpr bool alike()
{
    return sizeof(A) == sizeof(B) && std::is_pointer<A>::value == std::is_pointer<B>::value;
}
template <class Ours, class Theirs> struct same : std::false_type {};
template <class R, class... A, class S, class... B> struct same<R(A...), S(B...)> {
    template <bool, class = void> struct all : std::false_type {};
    template <class X> struct all<true, X> {
        static constexpr bool value = (alike<A, B>() && ...);
    };
    static constexpr bool value = sizeof(R) == sizeof(S) && all<sizeof...(A) == sizeof...(B)>::value;
};
} // namespace

#define X(name, params) static_assert(same<int params, decltype(name)>::value, #name " differs from the vendor's");
ALL(X)
