"""Every promise of a scalar function, broken once."""

from __future__ import annotations

import pytest
import torch

from timm_gcp.functional import ScalarFunction
from timm_gcp.ops.scalar_check import check_scalar_function
from timm_gcp.ops.scalar_functions import Log1p, NewtonSchulz, Power


class Root(ScalarFunction):
    degree = 0.5

    def value(self, lam):
        return lam.sqrt()

    def derivative(self, lam):
        return 0.5 * lam.rsqrt()


@pytest.mark.parametrize(
    "fn",
    [Root(), NewtonSchulz(5), NewtonSchulz(1), Power(0.5), Power(0.01), Power(1.7), Log1p(1e-3), Log1p(0.5)],
    ids=repr,
)
def test_right_ones_pass(fn):
    check_scalar_function(fn)


def broken(**methods) -> ScalarFunction:
    return type("Mine", (Root,), methods)()


BROKEN: list[tuple[dict, type, str]] = [
    ({"degree": "half"}, ValueError, r"the degree of Mine\(\) is 'half'; give None or a number of at least 0"),
    ({"degree": -1}, ValueError, r"the degree of Mine\(\) is -1"),
    ({"degree": True}, ValueError, r"the degree of Mine\(\) is True"),
    ({"degree": float("nan")}, ValueError, r"the degree of Mine\(\) is nan"),
    ({"value": lambda s, lam: (lam + 0.1).log()}, ValueError, r"f\(0\) of Mine\(\) is -2\.303, .*; return f\(λ\) − "),
    ({"value": lambda s, lam: lam.log()}, ValueError, r"f\(0\) of Mine\(\) is -690"),
    ({"value": lambda s, lam: lam / 0}, ValueError, r"value of Mine\(\) gives NaN or Inf for the eigenvalues \["),
    ({"value": lambda s, lam: lam.wrong}, ValueError, r"value of Mine\(\) fails .* \(1, 5\): 'Tensor' object has no"),
    ({"value": lambda s, lam: 1.0}, TypeError, r"value of Mine\(\) must return floating-point tensors of shape \(1, 5"),
    ({"value": lambda s, lam: lam.int()}, TypeError, r"value of Mine\(\) must return floating-point"),
    ({"value": lambda s, lam: lam[:, :2]}, ValueError, r"value of Mine\(\) must return .* \(1, 5\), not \(1, 2\)"),
    ({"derivative": ScalarFunction.derivative}, ValueError, r"divided of .* fails .*Mine gives no derivative"),
    (
        {"derivative": lambda s, lam: lam.rsqrt()},
        ValueError,
        r"divided of .* gives 1\.348.* for the eigenvalues 0\.55 and 0\.55, where the difference quotient is 0\.674",
    ),
    ({"divided": lambda s, lam: lam.sqrt()}, TypeError, r"divided of .* must return .* \(1, 5\) and \(1, 5, 5\)"),
    ({"divided": lambda s, lam: (lam, lam)}, ValueError, r"divided .* \(1, 5, 5\), not \(1, 5\) and \(1, 5\)"),
    ({"divided": lambda s, lam: Power(0.4).divided(lam)}, ValueError, r"divided of .* gives 0\.\d+ at the eigenvalue"),
    ({"divided": lambda s, lam: (lam.sqrt(), lam[..., None] / 0 * lam)}, ValueError, r"divided .* gives NaN or Inf"),
    ({"quotient": lambda s, lam: Power(0.4).quotient(lam)}, ValueError, r"quotient of .* gives .*; by value it is"),
    ({"quotient_divided": lambda s, lam: s.divided(lam)}, ValueError, r"quotient_divided of Mine\(\) gives"),
    (
        {"quotient_divided": lambda s, lam: (s.quotient(lam), s.divided(lam)[1])},
        ValueError,
        r"quotient_divided of .* gives .* for the eigenvalues .*; check the derivative or the divided differences",
    ),
]


@pytest.mark.parametrize(("methods", "error", "text"), BROKEN)
def test_wrong_ones_are_told(methods, error, text):
    with pytest.raises(error, match=text) as caught:
        check_scalar_function(broken(**methods))
    assert "\n" not in str(caught.value)


def test_nothing_is_recorded_or_changed():
    seen = []

    def value(self, lam):
        seen.append((torch.is_grad_enabled(), lam))
        lam.add_(0)
        return lam.sqrt()

    check_scalar_function(broken(value=value))
    assert seen
    assert not any(enabled for enabled, _ in seen)
